"""Numbers kept per row, which new requests inherit from those before them.

Shapes: R rows known, B rows asked about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray

MOST_ROWS = 32


def sampled_rows(chosen_B: BoolArray, step: int) -> IntArray:
    """Places of at most `MOST_ROWS` of the chosen rows, others at the next step: time per step stays bounded.

    >>> sampled_rows(np.array([True, False, True]), 0).tolist()
    [0, 2]
    """
    places = np.flatnonzero(chosen_B)
    stride = -(-len(places) // MOST_ROWS)
    return places[step % stride :: stride] if stride > 1 else places


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
        self._sums_R: FloatArray = np.zeros(0)
        self._counts_R: FloatArray = np.zeros(0)
        self._sum = 0.0
        self.count = 0.0
        """Values ever added."""

    @property
    def mean(self) -> float:
        """Over all requests; nan before the first value."""
        return self._sum / self.count if self.count else float("nan")

    def of(self, rows_B: IntArray) -> FloatArray:
        """`[B]`; nan before the first value of any row."""
        self._grow(rows_B)
        prior = self._weight * self.mean
        means: FloatArray = (self._sums_R[rows_B] + prior) / (self._counts_R[rows_B] + self._weight)
        return means

    def add(self, rows_B: IntArray, sums_B: FloatArray, counts_B: FloatArray) -> None:
        """Add `counts_B[i]` values that sum to `sums_B[i]` to row `rows_B[i]`; rows differ."""
        self._grow(rows_B)
        self._sums_R[rows_B] += sums_B
        self._counts_R[rows_B] += counts_B
        self._sum += float(sums_B.sum())
        self.count += float(counts_B.sum())

    def forget(self, rows: Sequence[int]) -> None:
        """These rows start again from the mean over all; unknown rows are ignored."""
        known = [row for row in rows if row < len(self._sums_R)]
        self._sums_R[known] = 0.0
        self._counts_R[known] = 0.0

    def _grow(self, rows_B: IntArray) -> None:
        missing = (int(rows_B.max()) + 1 if len(rows_B) else 0) - len(self._sums_R)
        if missing > 0:
            self._sums_R = np.append(self._sums_R, np.zeros(missing))
            self._counts_R = np.append(self._counts_R, np.zeros(missing))
