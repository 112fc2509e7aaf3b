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

    def cells(self) -> dict[str, str]:
        """MiB as they are shown."""
        steps = {f"a step at batch {batch}": size for batch, size in self.steps.items()}
        return {name: _mib(size) for name, size in {**self.kept, **steps}.items()}


def print_memory(console: Console, memory: Sequence[EngineMemory]) -> None:
    """A line for one engine, a table for several; nothing where it is not known."""
    total = _mib(sum(size for engine in memory for size in engine.kept.values()))
    if len(memory) == 1:
        parts = ", ".join(f"{name} {shown}" for name, shown in memory[0].cells().items())
        console.print(f"Memory in MiB, {total} and a step at a time: {parts}", markup=False, soft_wrap=True)
    elif memory:
        cells = [engine.cells() for engine in memory]
        purposes = list(dict.fromkeys(name for engine in cells for name in engine))
        names = [engine.drafter or NO_DRAFTER for engine in memory]
        rows = [[purpose, *(own.get(purpose, "") for own in cells)] for purpose in purposes]
        title = f"Memory in MiB, {total} and a step at a time (all share the target's weights)"
        console.print(table(title, ["drafter", *names], rows))


def _mib(size: int) -> str:
    """Whole MiB, small ones to a tenth."""
    return f"{size / MIB:.1f}" if size < 10 * MIB else f"{size / MIB:.0f}"
