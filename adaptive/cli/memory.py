"""What engines will take, shown before they are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from adaptive.cli.render import table

MIB = 1 << 20
NO_DRAFTER = "none"


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes by purpose of what stays, and by batch size of what the largest step takes while it runs.

    Of engines that share the target's weights the first one counts them.
    """

    drafter: str | None
    kept: Mapping[str, int]
    steps: Mapping[int, int]

    def as_json(self) -> dict[str, object]:
        return {"drafter": self.drafter, "bytes": dict(self.kept), "step_bytes": dict(self.steps)}

    def kept_cells(self) -> dict[str, str]:
        """MiB as they are shown."""
        return {name: _mib(size) for name, size in self.kept.items()}

    def step_cells(self) -> dict[str, str]:
        return {f"a step at batch {batch}": _mib(size) for batch, size in self.steps.items()}


def print_memory(console: Console, memory: Sequence[EngineMemory]) -> None:
    """A line for one engine, a table for several; nothing where it is not known."""
    total = _mib(sum(size for engine in memory for size in engine.kept.values()))
    if len(memory) == 1:
        cells = memory[0].kept_cells() | memory[0].step_cells()
        parts = ", ".join(f"{name} {shown}" for name, shown in cells.items())
        console.print(f"Memory in MiB, {total} and a step at a time: {parts}", markup=False, soft_wrap=True)
    elif memory:
        kept, steps = ([engine.kept_cells() for engine in memory], [engine.step_cells() for engine in memory])
        names = [engine.drafter or NO_DRAFTER for engine in memory]
        rows = [*_rows(kept), *_rows(steps)]
        title = f"Memory in MiB, {total} and a step at a time (all share the target's weights)"
        console.print(table(title, ["drafter", *names], rows))


def _rows(cells: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A line for each name, a column for each engine."""
    names = dict.fromkeys(name for own in cells for name in own)
    return [[name, *(own.get(name, "") for own in cells)] for name in names]


def _mib(size: int) -> str:
    """Whole MiB, small ones to a tenth."""
    return f"{size / MIB:.1f}" if size < 10 * MIB else f"{size / MIB:.0f}"
