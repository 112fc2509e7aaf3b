"""Lists in one value, as people type them: separated by commas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def words(texts: Iterable[str]) -> list[str]:
    """What commas separate, in one value or several. Those inside brackets belong to a word.

    >>> words(["fixed:0, schedule:[[1,4,5]]", "ema"])
    ['fixed:0', 'schedule:[[1,4,5]]', 'ema']
    """
    return [part.strip() for text in texts for part in _split(text) if part.strip()]


def whole_numbers(option: str, text: str, least: int = 0) -> tuple[int, ...]:
    """Ascending, each once. ValueError for what is no whole number, or below `least`."""
    what = f"whole numbers from {least}"
    values = _numbers(option, text, int, what, "1,2,4")
    if min(values) < least:
        raise _error(option, text, what, "1,2,4")
    return tuple(sorted(set(values)))


def numbers(option: str, text: str) -> tuple[float, ...]:
    """As they stand. ValueError for what is no number.

    >>> numbers("--rates", "0.9, 0.5")
    (0.9, 0.5)
    """
    return tuple(_numbers(option, text, float, "numbers", "0.9,0.5,0.2"))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _numbers(option: str, text: str, kind: Callable[[str], Number], what: str, example: str) -> list[Number]:
    try:
        return [kind(part) for part in _split(text)]
    except ValueError:
        raise _error(option, text, what, example) from None


def _error(option: str, text: str, what: str, example: str) -> ValueError:
    return ValueError(f"{option}: {text!r} is not a list of {what}: write it as {example}")
