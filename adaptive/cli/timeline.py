"""Where γ went, step by step: one block a step, as high as γ, coloured by how much of the draft stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from adaptive.benchmark import StepTrace

BLOCKS = "▁▂▃▄▅▆▇█"
DIGITS = "123456789abcdefghijklmnopqrstuvwxyz"
NO_DRAFT = "·"
KEPT = "  kept"


def print_timeline(console: Console, runs: Mapping[str, Sequence[StepTrace]], reasons: Mapping[str, int]) -> None:
    """A row of marks per task, wrapped where it is long, then how often each reason was given."""
    top = max((step.gamma for steps in runs.values() for step in steps), default=0)
    console.print("\n[bold]Where γ went[/] (one mark a pass of the model; every task starts with nothing learned)")
    coloured = console.color_system is not None
    if coloured:
        key = "[green]most[/], [yellow]some[/], [red]little[/] of the draft was kept, [dim]nothing to draft from[/]"
    else:
        key = "the row below: how many were kept"
    console.print(f"height: γ, the highest is {top}, {NO_DRAFT} is 0; {key}")
    indent = max(map(len, [*runs, KEPT])) + 2
    for task, steps in runs.items():
        _print_rows(console, task, steps, top, indent=indent, kept_row=not coloured)
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    console.print(f"Why (reasons the policy gave, in passes): {counts}", markup=False)


def _print_rows(
    console: Console, task: str, steps: Sequence[StepTrace], top: int, *, indent: int, kept_row: bool
) -> None:
    width = max(20, console.width - indent)
    ascii_only = console.options.ascii_only
    for start in range(0, len(steps), width):
        part = steps[start : start + width]
        label = task if start == 0 else ""
        console.print(Text(f"{label:<{indent}}").append_text(gamma_marks(part, top, ascii_only=ascii_only)))
        if kept_row:
            kept = "".join(_mark(step.accepted, top, ascii_only=ascii_only) for step in part)
            console.print(Text(f"{KEPT:<{indent}}{kept}"))


def gamma_marks(steps: Sequence[StepTrace], top: int, *, ascii_only: bool) -> Text:
    """One character a step; digits and letters where the terminal has no blocks."""
    marks = Text()
    for step in steps:
        marks.append(_mark(step.gamma, top, ascii_only=ascii_only), style=_colour(step))
    return marks


def _mark(count: int, top: int, *, ascii_only: bool) -> str:
    if count == 0:
        return "." if ascii_only else NO_DRAFT
    if ascii_only:
        return DIGITS[min(count, len(DIGITS)) - 1]
    return BLOCKS[-(-count * len(BLOCKS) // top) - 1]


def _colour(step: StepTrace) -> str:
    if step.drafted == 0:
        return "dim"
    kept = step.accepted / step.drafted
    return "green" if kept > 2 / 3 else "yellow" if kept > 1 / 3 else "red"
