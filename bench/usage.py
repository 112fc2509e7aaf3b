"""What the user of a benchmark typed wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage() -> Iterator[None]:
    """ValueError ends with status 2 and its message."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
