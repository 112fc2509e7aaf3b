"""What each row's cache holds, on the host: which of it a request that comes in begins with.

A freed row keeps its content until it is taken again. What stands is all but a row's newest token: its place, and the
places after it, hold keys and values of draft tokens that were rejected. Shapes: R rows, P capacity, L tokens of a
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.contract import IntArray, ceil_bucket
from engine.config import doubling_buckets
from engine.request_state import RequestState

SHORTEST = 16
"""Fewer shared tokens save nothing: a chunk of up to so many costs the same, as it reads all the weights anyway."""


class PrefixIndex:
    """Tokens per row and how many of them stand: `held_R` in the target's cache, `drafted_R` in a draft model's.

    Between two calls each number may be too low, never too high, wherever an exception strikes.
    """

    def __init__(self, rows: int, capacity: int, *, drafts: bool) -> None:
        """`drafts` says whether the drafter's cache can be reused at all."""
        self.held_R: IntArray = np.zeros(rows, dtype=np.int64)
        self.drafted_R: IntArray = np.zeros(rows, dtype=np.int64)
        self._tokens_RP: NDArray[np.int32] = np.zeros((rows, capacity), dtype=np.int32)
        self._known: list[int] = [0] * rows  # tokens of a running request that were copied here
        self._used_R: IntArray = np.zeros(rows, dtype=np.int64)  # when its content was last used
        self._now = 0
        self._batches = doubling_buckets(rows)
        self._drafts = drafts

    def follow(self, running: Iterable[RequestState]) -> None:
        """Take note of what running requests have emitted and cached since."""
        for request in running:
            if request.seated:
                self._follow(request)

    def _follow(self, request: RequestState) -> None:
        row, known = request.row, self._known[request.row]
        new = request.tokens[known - len(request.prompt) :]
        if new:
            self._tokens_RP[row, known : known + len(new)] = new
            self._known[row] = known + len(new)
        held = request.context_len - 1 if request.decoding else request.prefilled
        self.held_R[row] = held
        self.drafted_R[row] = min(request.cached, held) if self._drafts else 0

    def shared(self, tokens: Sequence[int]) -> IntArray:
        """How many of `tokens`, the last one aside, each row's cache holds `[R]`; 0 where they are too few to count."""
        limit = len(tokens) - 1
        head = min(limit, SHORTEST)
        shared_R = np.zeros_like(self.held_R)
        if limit == 0:
            return shared_R
        tokens_L = np.array(tokens[:limit], dtype=np.int32)
        alike = np.flatnonzero((self._tokens_RP[:, :head] == tokens_L[:head]).all(1) & (self.held_R >= head))
        if alike.size:
            equal_XL = self._tokens_RP[alike, :limit] == tokens_L
            common_X = np.where(equal_XL.all(1), limit, equal_XL.argmin(1))
            shared_R[alike] = np.minimum(common_X, self.held_R[alike])
        return shared_R

    def choose(self, free: Sequence[int], shared_R: IntArray) -> int:
        """Which of the free rows (ascending) to take: one that needs no wider a batch than the lowest does.

        Of these the one that holds most of the request, and of equals the one whose content was used longest ago.
        """
        width = ceil_bucket(self._batches, free[0] + 1)
        near = [row for row in free if row < width]
        return min(near, key=lambda row: (-int(shared_R[row]), int(self._used_R[row]), row))

    def refuge(self, row: int, kept: int, free: Sequence[int], avoid: int | None) -> int | None:
        """A free row to save the content of `row` to, of which only `kept` tokens would stay.

        That is the one whose content was used longest ago, unless that of `row` is even older. `avoid` is not taken.
        """
        others = [other for other in free if other != avoid]
        if self.held_R[row] - kept < SHORTEST or not others:
            return None
        oldest = min(others, key=lambda other: int(self._used_R[other]))
        return oldest if self._used_R[oldest] < self._used_R[row] else None

    def clear(self, row: int) -> None:
        """Its content is about to be overwritten."""
        self.held_R[row] = self.drafted_R[row] = self._used_R[row] = 0

    def copied(self, source: int, target: int) -> None:
        """All that `source` held is now in the free row `target`, too."""
        self._tokens_RP[target] = self._tokens_RP[source]
        self._used_R[target] = self._used_R[source]
        self.drafted_R[target] = self.drafted_R[source]
        self.held_R[target] = self.held_R[source]

    def take(self, request: RequestState, kept: int) -> None:
        """A request takes its row, whose cache already holds its first `kept` tokens."""
        row, tokens = request.row, request.all_tokens()
        self.held_R[row] = kept
        self.drafted_R[row] = min(kept, int(self.drafted_R[row]))
        self._tokens_RP[row, : len(tokens)] = tokens
        self._known[row] = len(tokens)

    def reused(self, row: int, count: int) -> None:
        """A request copied `count` tokens of `row`. Where that is all there was, the copy makes it superfluous."""
        self._used_R[row] = 0 if count == self.held_R[row] else self._tick()

    def release(self, request: RequestState) -> None:
        """A request leaves its row; what it computed stays."""
        self.follow([request])
        self._used_R[request.row] = self._tick()

    def _tick(self) -> int:
        self._now += 1
        return self._now
