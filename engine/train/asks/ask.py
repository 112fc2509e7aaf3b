"""One thing to ask, and the guard that keeps prompts used for measuring out of what is learnt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WORDS_IN_A_ROW = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """A user's message, or with `raw` a text to go on with. `source` names where it is from: a module, a text, a turn.

    All asks of one source are learnt from, or all are held out.
    """

    task: str
    text: str
    source: str
    raw: bool = False


class Guard:
    """Knows the prompts that measure, and refuses texts that share eight words in a row with one of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known = {run for text in texts for run in _runs(text)}

    def admits(self, text: str) -> bool:
        return self._known.isdisjoint(_runs(text))


def _runs(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    count = max(1, len(words) - WORDS_IN_A_ROW + 1)
    return {" ".join(words[begin : begin + WORDS_IN_A_ROW]) for begin in range(count)} if words else set()
