"""One step's drafting, token by token: go on while it is expected to pay.

AdaSpec's step-level speculation. After each drafted position the tokens expected of the batch are divided by the
seconds of the step as it stands. Drafting stops when that has dropped, or when one more position is predicted to drop
it. The token that made it drop is kept and verified, which keeps the rule lossless: what is known of a token only
decides about later ones.

Shapes: B rows of the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray
from policies.cost_tracker import CostTracker


@dataclass
class Drafting:
    """What is drafted so far in one step of `rows`, at most `cap` tokens deep.

    `rates_M` are the chances expected of tokens not drafted yet, by position. `widths` are the captured widths of a
    verification, ascending: instead of one more token for every row, those rows alone may get one that fill a width.
    """

    rows: IntArray
    context: int
    cap: int
    rates_M: FloatArray
    tracker: CostTracker
    widths: Sequence[int] = ()

    def __post_init__(self) -> None:
        batch = len(self.rows)
        self.packed = batch
        self.expected = float(batch)
        self.best = batch / self.tracker.step_s(batch, 0, batch, self.context)
        self.survival_B: FloatArray | None = None  # 1 before the first token
        self._survivors = float(batch)
        self.newest_sum, self.newest_count = 0.0, 0
        """Of the newest position: chances in all, and tokens drafted."""
        self.history_KB: list[FloatArray] = []
        """Survival of each drafted position, nan where a row did not draft it."""

    def extend(self, chances_B: FloatArray) -> BoolArray:
        """Which rows draft one more token, after a position whose tokens stand with these chances (nan: none)."""
        drafted_B: BoolArray = chances_B >= 0  # nan is not
        count = self.newest_count = int(np.count_nonzero(drafted_B))
        first = self.survival_B is None
        survival_B = chances_B if self.survival_B is None else self.survival_B * chances_B
        self.history_KB.append(survival_B)
        if count < len(chances_B):
            chances_B = np.where(drafted_B, chances_B, 0.0)
            survival_B = chances_B if first else np.where(drafted_B, survival_B, 0.0)
        self.survival_B = survival_B
        self.newest_sum = float(np.add.reduce(chances_B))
        if count == 0:
            return drafted_B
        self._survivors = self.newest_sum if first else float(np.add.reduce(survival_B))
        self.packed += count
        self.expected += self._survivors
        depth = len(self.history_KB)
        goodput = self._goodput(self.expected, depth, self.packed)
        if goodput < self.best or depth >= min(self.cap, len(self.rates_M)):
            return np.zeros(len(drafted_B), np.bool_)
        self.best = goodput
        return self._next(drafted_B, count, depth)

    def _goodput(self, expected: float, depth: int, packed: int) -> float:
        return expected / self.tracker.step_s(len(self.rows), depth, packed, self.context)

    def _next(self, drafted_B: BoolArray, count: int, depth: int) -> BoolArray:
        """One more token for all that drafted, or for the likeliest that fill a captured width, or for none."""
        rate = float(self.rates_M[depth])
        gain = rate * self._survivors
        best = self._goodput(self.expected + gain, depth + 1, self.packed + count)
        chosen_B, survival_B = drafted_B, self.survival_B
        fit = self._width_below(self.packed + count) - self.packed
        if 0 < fit < count and survival_B is not None:
            order_B = np.argpartition(survival_B, -fit)[-fit:]
            gain = rate * float(survival_B[order_B].sum())
            partly = self._goodput(self.expected + gain, depth + 1, self.packed + fit)
            if partly > best:
                best = partly
                chosen_B = np.zeros(len(drafted_B), np.bool_)
                chosen_B[order_B] = True
        return chosen_B if best >= self.best else np.zeros(len(drafted_B), np.bool_)

    def _width_below(self, tokens: int) -> int:
        """The largest captured width below `tokens`, 0 without one."""
        place = bisect_left(self.widths, tokens)
        return self.widths[place - 1] if place else 0

    def trimmed(self, greedy_B: BoolArray) -> IntArray:
        """Drafted lengths `[B]` cut down to the next smaller captured width, the least likely tail first.

        AdaSpec's request-level trimming. It looks at tokens that are drawn already, which biases sampled rows, so
        only greedy rows are cut. Uncut where no smaller width is in their reach, or goodput would not rise.
        """
        lens_B = np.zeros(len(self.rows), np.int64)
        for survival_B in self.history_KB:
            lens_B += ~np.isnan(survival_B)
        target = self._width_below(self.packed)
        surplus = self.packed - target
        if target < len(self.rows) or surplus > int(lens_B[greedy_B].sum()):
            return lens_B
        cut_B, lost = lens_B.copy(), 0.0
        tail_B = np.array(
            [self._tail(row, int(lens_B[row])) if greedy_B[row] else np.inf for row in range(len(lens_B))]
        )
        for _ in range(surplus):
            row = int(tail_B.argmin())
            lost += float(tail_B[row])
            cut_B[row] -= 1
            tail_B[row] = self._tail(row, int(cut_B[row]))
        depth = int(cut_B.max())
        before = self._goodput(self.expected, len(self.history_KB), self.packed)
        return cut_B if self._goodput(self.expected - lost, depth, target) >= before else lens_B

    def _tail(self, row: int, length: int) -> float:
        """Survival of a row's last token when it is `length` long; infinite where nothing can be cut."""
        return float(self.history_KB[length - 1][row]) if length else float("inf")
