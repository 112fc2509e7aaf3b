"""What a step tells the host, in numbers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptive.contract import FloatArray, IntArray, Signal
from adaptive.requests import TokenLogprob
from engine.tree import StaticTree


@dataclass(frozen=True, slots=True)
class Feedback:
    """One step's results on the host, per request of the batch. Seconds are nan where a piece did not run.

    `lossy` and `spent` are what a rule that is not exact let stand and cost (`StepReport`); None under exact rules.

    γ is what was drafted: the depth of the `tree`, where there was one, of which `drafted` and `verified` count nodes.
    """

    gamma: int
    tree: StaticTree | None
    tokens: list[list[int]]
    accepted: IntArray
    verified: IntArray
    drafted: IntArray
    draft_s: float
    verify_s: float
    lossy: IntArray | None = None
    spent: FloatArray | None = None
    signals: Mapping[Signal, FloatArray] | None = None
    logprob_values: list[list[list[float]]] | None = None
    logprob_ids: list[list[list[int]]] | None = None
    logprob_counts: tuple[int | None, ...] = ()

    def by_position(self, place: int) -> list[int]:
        """How many draft tokens were verified at each position: one each, but in a tree."""
        count = int(self.verified[place])
        return self.tree.levels(count) if self.tree else [1] * count

    def logprobs(self, place: int, count: int) -> list[TokenLogprob] | None:
        """The first `count` tokens' log-probabilities, if that request asked for them."""
        if self.logprob_values is None or self.logprob_ids is None or self.logprob_counts[place] is None:
            return None
        top = self.logprob_counts[place]
        rows = zip(self.tokens[place][:count], self.logprob_values[place], self.logprob_ids[place], strict=False)
        return [
            TokenLogprob(token, values[0], tuple(zip(ids[:top], values[1:], strict=False)))
            for token, values, ids in rows
        ]
