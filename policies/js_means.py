"""AdaSD's first rule: a draft token stands where its distance is below the midpoint of two means.

Shapes: R rows known, B rows asked about, C rows learnt from, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray
from policies.rows import RowMeans


class JsMeans:
    """Mean distances of rejected and of accepted tokens, over each request's life with a share of all requests'.

    >>> means = JsMeans()
    >>> means.learn(np.array([0]), np.array([0, 0]), np.array([0.15, 0.49]), np.array([True, False]))
    >>> means.thresholds(np.array([0])).round(2).tolist()
    [0.32]
    """

    def __init__(self, prior_weight: float = 4.0) -> None:
        self.samples = (0, 0)
        """Distances counted: rejected, accepted (those of exactly 0 or 1 are not)."""
        self._rejected = RowMeans(prior_weight)
        self._accepted = RowMeans(prior_weight)

    def thresholds(self, rows_B: IntArray) -> FloatArray:
        """`[B]`; nan before the first distance of either outcome."""
        return (self._rejected.of(rows_B) + self._accepted.of(rows_B)) / 2

    def learn(self, rows_C: IntArray, row_N: IntArray, distances_N: FloatArray, accepted_N: BoolArray) -> None:
        """Verified tokens of `rows_C` (all different): place in `rows_C`, distance and outcome of each."""
        lists, size = 2 * row_N + accepted_N, 2 * len(rows_C)
        counts_C2 = np.bincount(lists, minlength=size).reshape(-1, 2)
        sums_C2 = np.bincount(lists, weights=distances_N, minlength=size).reshape(-1, 2).astype(np.float64)
        for place, means in enumerate((self._rejected, self._accepted)):
            means.add(rows_C, sums_C2[:, place], counts_C2[:, place].astype(np.float64))
        inside_N = (distances_N > 0) & (distances_N < 1)
        accepted = int(np.count_nonzero(accepted_N & inside_N))
        rejected = int(np.count_nonzero(inside_N)) - accepted
        self.samples = self.samples[0] + rejected, self.samples[1] + accepted

    def forget(self, rows: Sequence[int]) -> None:
        """These rows start again from the means over all; unknown rows are ignored."""
        self._rejected.forget(rows)
        self._accepted.forget(rows)
