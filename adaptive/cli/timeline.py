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


def print_timeline(console: Console, runs: Mapping[str, Sequence[StepTrace]], reasons: Mapping[str, int]) -> None:
    """One line of steps per task (wrapped where it is long), then how often each reason was given."""
    top = max((step.gamma for steps in runs.values() for step in steps), default=0)
    console.print("\n[bold]Where γ went[/] (one mark a pass of the model; every task starts with nothing learned)")
    console.print(
        f"height: γ, the highest is {top}; {NO_DRAFT} no draft; colour: [green]most[/], [yellow]some[/], "
        "[red]little[/] of the draft was kept"
    )
    indent = max(map(len, runs)) + 2
    for task, steps in runs.items():
        _print_line(console, task, gamma_marks(steps, top, ascii_only=console.options.ascii_only), indent)
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
    console.print(f"Why (reasons the policy gave, in steps): {counts}", markup=False)


def gamma_marks(steps: Sequence[StepTrace], top: int, *, ascii_only: bool) -> Text:
    """One character a step; digits and letters where the terminal has no blocks."""
    marks = Text()
    for step in steps:
        if step.gamma == 0:
            marks.append("." if ascii_only else NO_DRAFT, style="dim")
        elif ascii_only:
            marks.append(DIGITS[min(step.gamma, len(DIGITS)) - 1], style=_colour(step))
        else:
            marks.append(BLOCKS[-(-step.gamma * len(BLOCKS) // top) - 1], style=_colour(step))
    return marks


def _colour(step: StepTrace) -> str:
    kept = step.accepted / step.drafted if step.drafted else 0.0
    return "green" if kept > 2 / 3 else "yellow" if kept > 1 / 3 else "red"


def _print_line(console: Console, task: str, marks: Text, indent: int) -> None:
    width = max(20, console.width - indent)
    for place, line in enumerate(marks.divide(range(width, len(marks), width))):
        label = task if place == 0 else ""
        console.print(Text(f"{label:<{indent}}").append_text(line), no_wrap=True)
