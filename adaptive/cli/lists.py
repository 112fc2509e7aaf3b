"""Lists as people type them: separated by commas."""

from __future__ import annotations

from collections.abc import Iterable

from adaptive.cli.errors import UsageError


def words(texts: Iterable[str]) -> list[str]:
    """What repeated options and commas separate.

    >>> words(["ngram, eagle3", "medusa"])
    ['ngram', 'eagle3', 'medusa']
    """
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Ascending, each once. Raises UsageError."""
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"{option}: {text!r} is not a list of whole numbers: write it as 1,2,4") from None
