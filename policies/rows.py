"""Numbers kept per row, which new requests inherit from those before them.

Shapes: R rows known, B rows asked about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray

ROWS_A_STEP = 16  # learnt from on average at most, a quarter of that once rests are at their longest
ROWS_A_TURN = 64  # at most
LONGEST_REST = 16  # steps


class Turns:
    """Whose turn it is to be learnt from: everybody's at each step in a small batch, of a crowd some now and then.

    Many rows at once: an array operation costs about the same for one row and for sixty.

    >>> turns, pair, crowd = Turns(), np.array([True, False, True]), np.ones(200, np.bool_)
    >>> [turns.rows(pair, step).tolist() for step in (0, 1)]
    [[0, 2], [0, 2]]
    >>> [step for step in range(2, 20) if turns.rows(crowd, step) is not None]
    [13]
    """

    def __init__(self) -> None:
        self._taken = 0
        self._newest = -LONGEST_REST

    def rows(self, chosen_B: BoolArray, step: int) -> IntArray | None:
        """Places in `chosen_B` to learn from at this step; None where nothing should be learnt."""
        count = int(np.count_nonzero(chosen_B))
        rest = min(count // ROWS_A_STEP, LONGEST_REST)
        if rest > 1 and 0 <= step - self._newest < rest:
            return None
        self._newest = step
        self._taken += 1
        places = chosen_B.nonzero()[0]
        stride = -(-count // ROWS_A_TURN)
        return places[self._taken % stride :: stride] if stride > 1 else places


class RowMeans:
    """Lifetime means per request, each with `prior_weight` made-up values at the mean over all requests.

    >>> means = RowMeans(prior_weight=1.0)
    >>> means.add(np.array([0, 1]), np.array([4.0, 2.0]), np.array([2.0, 1.0]))
    >>> means.of(np.array([0, 1, 5])).tolist()  # (4 + 2) / 3, (2 + 2) / 2, 2
    [2.0, 2.0, 2.0]
    >>> means.forget([0, 1])
    >>> means.mean
    2.0
    """

    def __init__(self, prior_weight: float = 4.0) -> None:
        self._weight = prior_weight
        self._kept_2R: FloatArray = np.zeros((2, 0))
        """Sums and counts."""
        self._means_R: FloatArray | None = None  # of all rows, until a value is added
        self._sum = 0.0
        self.count = 0.0
        """Values ever added."""

    @property
    def mean(self) -> float:
        """Over all requests; nan before the first value."""
        return self._sum / self.count if self.count else float("nan")

    def of(self, rows_B: IntArray) -> FloatArray:
        """`[B]`; nan before the first value of any row."""
        if self._means_R is None:
            self._means_R = self._blended(*self._kept_2R)
        try:
            return self._means_R.take(rows_B)
        except IndexError:
            self._make_room(rows_B)
            return self.of(rows_B)

    def add(self, rows_B: IntArray, sums_B: FloatArray, counts_B: FloatArray | None = None) -> None:
        """Add `counts_B[i]` values (None: one each) that sum to `sums_B[i]` to row `rows_B[i]`; rows differ.

        Rows whose sum is nan are left out.
        """
        total = float(np.add.reduce(sums_B))
        told_B = ~np.isnan(sums_B) if math.isnan(total) else None
        if told_B is not None and not told_B.all():
            self.add(rows_B[told_B], sums_B[told_B], None if counts_B is None else counts_B[told_B])
            return
        try:
            sums_R, counts_R = self._kept_2R
            sums_R[rows_B] += sums_B
            counts_R[rows_B] += 1.0 if counts_B is None else counts_B
        except IndexError:
            self._make_room(rows_B)
            self.add(rows_B, sums_B, counts_B)
            return
        self._means_R = None
        self._sum += total
        self.count += len(rows_B) if counts_B is None else float(np.add.reduce(counts_B))

    def forget(self, rows: Sequence[int]) -> None:
        """These rows start again from the mean over all; unknown rows are ignored."""
        shared = self._weight * self.mean / self._weight if self._weight else self.mean  # as `_blended` rounds it
        for row in rows:
            if row < self._kept_2R.shape[1]:
                self._kept_2R[:, row] = 0.0
                if self._means_R is not None:
                    self._means_R[row] = shared

    def _blended(self, sums_R: FloatArray, counts_R: FloatArray) -> FloatArray:
        """Means of rows with these sums and counts of their own."""
        if not self._weight:  # only what a row has seen itself counts for it, and all the others' where that is nothing
            alone_R: FloatArray = np.where(counts_R > 0, sums_R / np.maximum(counts_R, 1.0), self.mean)
            return alone_R
        means_R: FloatArray = (sums_R + self._weight * self.mean) / (counts_R + self._weight)
        return means_R

    def _make_room(self, rows_B: IntArray) -> None:
        """For rows not heard of before."""
        self._means_R = None
        missing = int(rows_B.max()) + 1 - self._kept_2R.shape[1]
        self._kept_2R = np.append(self._kept_2R, np.zeros((2, missing)), axis=1)
