"""What the commands print: tables and JSON on stdout, progress on stderr; plain text where there is no terminal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_WIDTH = 120
PLAIN_LINE_EVERY_S = 5.0
MISSING = "–"


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    # Into a pipe rich assumes 80 columns and would fold the tables.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def to_json(value: object, indent: int | None = None) -> str:
    """JSON in which nan and infinities are null, as the standard wants."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_json(value: object, indent: int | None = None) -> None:
    """Past rich, which would wrap long lines."""
    print(to_json(value, indent), flush=True)


def number(value: float, digits: int = 1) -> str:
    return MISSING if math.isnan(value) else f"{value:.{digits}f}"


def share(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:.0f}%"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """The first `left` columns hold words, the others numbers."""
    grid = Table(title=title, title_justify="left", header_style="bold")
    for place, column in enumerate(columns):
        grid.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


class Steps:
    """Progress of something long, on stderr: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, title: str, total: int | None = None) -> None:
        self._title = title
        self._console = stderr()
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._printed_at = -math.inf
        self._started_at = monotonic()
        self._begun = 0
        counted = (TimeRemainingColumn(),) if total else ()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            *counted,
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task(title, total=total)
        self._total = total

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, text: str) -> None:
        """A unit of work starts; the one before it is over."""
        self._progress.update(self._task, completed=self._begun, description=f"{self._title}: {text}")
        self._begun += 1
        count = f" [{self._begun}/{self._total}]" if self._total else ""
        self._print(f"{self._title}{count}: {text}")

    def reached(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)
        if monotonic() - self._started_at >= PLAIN_LINE_EVERY_S:  # what is quick needs no lines
            self._print(f"{self._title}: {100 * done // total}%")

    def _print(self, line: str) -> None:
        if self._live or monotonic() - self._printed_at < PLAIN_LINE_EVERY_S:
            return
        self._printed_at = monotonic()
        self._console.print(line, markup=False)
