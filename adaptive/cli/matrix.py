"""Policies on drafters in one table: a block for each batch size, a group for each drafter, a column for each task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from adaptive.cli.render import MISSING, number

if TYPE_CHECKING:
    from adaptive.benchmark import ArmSummary, Figures, Outcome

WIDTH = 100
TASKS_ACROSS = 4  # with more, a further table takes the next ones
POSITIONS = 5
FIXED_WIDTH = 17  # arm, cost and what is between columns, about

TITLE = (
    "τ tokens a step, × speed over plain decoding of the same batch, α by position (% that stood of those verified); "
    "c: drafting one token deeper over a plain step"
)


def matrix(outcomes: Sequence[Outcome]) -> Iterator[Table]:
    """One table, or several where there are many tasks. An arm that no drafter takes part in stands first."""
    tasks = list(outcomes[0].summaries[0].tasks)
    for start in range(0, len(tasks), TASKS_ACROSS):
        yield _table(outcomes, tasks[start : start + TASKS_ACROSS])


def _table(outcomes: Sequence[Outcome], tasks: Sequence[str]) -> Table:
    grid = Table(
        title=TITLE, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    grid.add_column("arm", overflow="fold")
    grid.add_column("c", justify="right", no_wrap=True)
    count = _positions(outcomes, tasks)
    for task in tasks:
        grid.add_column(f"{task}\n   τ     ×  α", no_wrap=True)
    for outcome in outcomes:
        if len(outcomes) > 1:
            grid.add_section()
            grid.add_row(f"[bold]batch {outcome.batch}[/]")
        _add_arms(grid, outcome.summaries, tasks, count)
    return grid


def _add_arms(grid: Table, summaries: Sequence[ArmSummary], tasks: Sequence[str], count: int) -> None:
    drafter: str | None = None
    for one in summaries:
        if one.drafter != drafter and one.drafter is not None:
            grid.add_row(f"[bold]{one.drafter}[/]")
        drafter = one.drafter
        indent = " " if drafter else ""
        grid.add_row(
            indent + escape(one.policy), _cost(one.overall), *(_cell(one.tasks[task], count) for task in tasks)
        )


def _cost(figures: Figures) -> str:
    ratio = number(100 * figures.cost.ratio)
    return "" if ratio == MISSING else f"{ratio}%"


def _cell(figures: Figures, count: int) -> str:
    return f"{number(figures.tau, 2):>4} {number(figures.ratio.median, 2):>5}  {_alphas(figures, count)}".rstrip()


def _alphas(figures: Figures, count: int) -> str:
    return " ".join(f"{100 * alpha:2.0f}" for alpha in figures.alpha_by_position[:count])


def _positions(outcomes: Sequence[Outcome], tasks: Sequence[str]) -> int:
    """How many positions fit, as they come out: a hundred takes more room than two digits."""
    summaries = [one for outcome in outcomes for one in outcome.summaries]
    for count in range(POSITIONS, 1, -1):
        widths = [max(len(_cell(one.tasks[task], count)) for one in summaries) for task in tasks]
        if FIXED_WIDTH + sum(width + 2 for width in widths) <= WIDTH:
            return count
    return 1
