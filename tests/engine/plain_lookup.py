"""Prompt lookup by looking: what the index must find, from nothing but the text."""

from __future__ import annotations

from collections.abc import Sequence

Found = tuple[int, list[int]]


def run_back(history: Sequence[int], end: int, most: int) -> int:
    """How many tokens that end at `end` equal the newest ones, at most `most`."""
    newest, run = len(history) - 1, 0
    while run < most and end - run >= 0 and history[end - run] == history[newest - run]:
        run += 1
    return run


def continued(history: Sequence[int], end: int, gamma: int) -> list[int]:
    """What follows after `end`, starting over at the present."""
    text, period = list(history), len(history) - 1 - end
    for _ in range(gamma):
        text.append(text[-period])
    return text[len(history) :]


def look_up(history: Sequence[int], min_match: int, max_match: int, gamma: int) -> Found:
    """Match length and draft: the longest earlier copy of the newest tokens, the most recent of equals, continued."""
    ends = range(len(history) - 1)
    length, end = max(((run_back(history, end, max_match), end) for end in ends), default=(0, 0))
    return (length, continued(history, end, gamma)) if length >= min_match else (0, [])


def look_up_in(texts: Sequence[Sequence[int]], newest: Sequence[int], max_match: int, gamma: int) -> Found:
    """The same in texts that have ended, oldest first: only places that something follows, and never past a text."""
    best: Found = (0, [])
    for text in texts:
        for end in range(len(text) - 1):
            run = 0
            while run < min(max_match, len(newest), end + 1) and text[end - run] == newest[-1 - run]:
                run += 1
            if run >= max(best[0], 1):
                best = (run, list(text[end + 1 : end + 1 + gamma]))
    return best
