"""AdaSD's second rule: the chance that a draft token is one of those that stand, given its distance to the target.

P(A|d) = p(d|A)·P(A) / (p(d|A)·P(A) + p(d|R)·P(R)), densities by Gaussian kernels of Silverman's width over the
distances of accepted (A) and rejected (R) tokens. Distances are counted on a grid, each shared between its two
neighbours, so that neither memory nor time grows with what was seen.

Shapes: R rows known, B rows asked about, C rows learnt from, K grid points, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray

POINTS = 33
FLOOR = 1e-3  # of the standard deviation, where all distances are alike
NARROWEST, WIDEST, LEVELS = 1e-3, 0.6, 128  # kernel widths are rounded to one of these, by 2.5 % at most
PRIOR_WEIGHT = 16.0  # a request's own distances count beside so many of all requests
FIRST_REFRESH = 8
ROWS_PER_REFRESH = 4


class JsPosterior:
    """Tables `[K]` of P(A|d) at K equally spaced distances from 0 to 1: one for all requests, one for each.

    A request's table is made anew when what it has seen has doubled; until then it is the one of all requests.
    """

    def __init__(self, points: int = POINTS) -> None:
        self.grid_K: FloatArray = np.linspace(0.0, 1.0, points)
        self._widths = np.geomspace(NARROWEST, WIDEST, LEVELS)
        distance_KK = self.grid_K[:, None] - self.grid_K
        self._kernels_LKK = np.exp(-0.5 * (distance_KK / self._widths[:, None, None]) ** 2)
        self._kernels_LKK /= self._widths[:, None, None] * np.sqrt(2 * np.pi)
        self.shared_2K: FloatArray = np.zeros((2, points))
        """Counts of all requests: rejected, accepted."""
        self._shared_table_K: FloatArray = np.zeros(points)
        self._stale = 0.0
        self._counts_R2K: FloatArray = np.zeros((0, 2, points))
        self._tables_RK: FloatArray = np.zeros((0, points))
        self._own_R: BoolArray = np.zeros(0, np.bool_)
        self._seen_R: FloatArray = np.zeros(0)
        self._refresh_at_R: FloatArray = np.zeros(0)

    @property
    def samples(self) -> tuple[int, int]:
        """Distances counted: rejected, accepted (those of exactly 0 or 1 are not)."""
        rejected, accepted = self.shared_2K.sum(axis=1).round().astype(int).tolist()
        return rejected, accepted

    def tables(self, rows_B: IntArray) -> FloatArray:
        """`[B, K]`, 1 at distance 0 and 0 at distance 1."""
        self._grow(rows_B)
        return np.where(self._own_R[rows_B, None], self._tables_RK[rows_B], self._shared_table_K)

    def density(self, accepted: bool) -> FloatArray:
        """The kernel density `[K]` of all requests' accepted or rejected distances, at the grid."""
        counts_2K = self.shared_2K[int(accepted)][None]
        density: FloatArray = self._smooth(counts_2K)[0] / counts_2K.sum()
        return density

    def learn(self, rows_C: IntArray, row_N: IntArray, distances_N: FloatArray, accepted_N: BoolArray) -> None:
        """Count verified tokens of `rows_C` (all different): place in `rows_C`, distance and outcome of each."""
        inside = (distances_N > 0) & (distances_N < 1)
        if not inside.all():
            row_N, distances_N, accepted_N = row_N[inside], distances_N[inside], accepted_N[inside]
        if not len(row_N):
            return
        self._grow(rows_C)
        points = len(self.grid_K)
        place_N = distances_N * (points - 1)
        low_N = np.minimum(place_N.astype(np.int64), points - 2)
        upper_N = place_N - low_N
        cell_N = (row_N * 2 + accepted_N) * points + low_N
        cells = np.concatenate([cell_N, cell_N + 1])
        weights = np.concatenate([1 - upper_N, upper_N])
        size = len(rows_C) * 2 * points
        counts_C2K = np.bincount(cells, weights=weights, minlength=size).reshape(len(rows_C), 2, points)
        self._counts_R2K[rows_C] += counts_C2K
        self.shared_2K += counts_C2K.sum(axis=0)
        self._seen_R[rows_C] += np.bincount(row_N, minlength=len(rows_C))
        self._stale += len(row_N)
        self._refresh()

    def forget(self, rows: Sequence[int]) -> None:
        """These rows start again from the table of all requests; unknown rows are ignored."""
        known = [row for row in rows if row < len(self._seen_R)]
        self._counts_R2K[known] = 0.0
        self._seen_R[known] = 0.0
        self._own_R[known] = False
        self._refresh_at_R[known] = FIRST_REFRESH

    def _refresh(self) -> None:
        """Tables whose evidence has grown enough; of many rows a few at a time, those that lag most first."""
        total = float(self.shared_2K.sum())
        if self._stale * 8 >= total or not self._shared_table_K.any():
            self._shared_table_K = self._posterior(self.shared_2K[None])[0]
            self._stale = 0.0
        due = np.flatnonzero(self._seen_R >= self._refresh_at_R)
        if not len(due):
            return
        if len(due) > ROWS_PER_REFRESH:
            lag = self._seen_R[due] / self._refresh_at_R[due]
            due = due[np.argpartition(lag, -ROWS_PER_REFRESH)[-ROWS_PER_REFRESH:]]
        shares_2K = self.shared_2K / max(total, 1.0)
        self._tables_RK[due] = self._posterior(self._counts_R2K[due] + PRIOR_WEIGHT * shares_2K)
        self._own_R[due] = True
        self._refresh_at_R[due] = 2 * self._seen_R[due]

    def _posterior(self, counts_B2K: FloatArray) -> FloatArray:
        """P(A|d) `[B, K]`: sums of kernels weigh the two outcomes by how often they occurred."""
        batch, _, points = counts_B2K.shape
        mass_B2K = self._smooth(counts_B2K.reshape(2 * batch, points)).reshape(batch, 2, points)
        total_BK = mass_B2K.sum(axis=1)
        count_B2 = counts_B2K.sum(axis=2)
        prior_B1 = (count_B2[:, 1] / np.maximum(count_B2.sum(axis=1), 1e-9))[:, None]
        # Far from all that was seen both densities vanish and only the prior is left.
        seen_BK = total_BK > 1e-12
        posterior_BK = np.where(seen_BK, mass_B2K[:, 1] / np.where(seen_BK, total_BK, 1.0), prior_B1)
        posterior_BK[:, 0], posterior_BK[:, -1] = 1.0, 0.0
        return posterior_BK

    def _smooth(self, counts_BK: FloatArray) -> FloatArray:
        """The sum of one kernel per counted distance, at the grid; Silverman's width for one dimension."""
        count_B = np.maximum(counts_BK.sum(axis=1), 1e-9)
        mean_B = counts_BK @ self.grid_K / count_B
        spread_B = (counts_BK * (self.grid_K - mean_B[:, None]) ** 2).sum(axis=1) / np.maximum(count_B - 1, 1e-9)
        width_B = np.maximum(np.sqrt(spread_B), FLOOR) * (0.75 * count_B) ** -0.2
        scale = (LEVELS - 1) / np.log(WIDEST / NARROWEST)
        level_B = np.clip(np.rint(np.log(width_B / NARROWEST) * scale), 0, LEVELS - 1).astype(np.int64)
        smooth: FloatArray = np.einsum("bkj,bj->bk", self._kernels_LKK[level_B], counts_BK)
        return smooth

    def _grow(self, rows_B: IntArray) -> None:
        missing = (int(rows_B.max()) + 1 if len(rows_B) else 0) - len(self._seen_R)
        if missing > 0:
            points = len(self.grid_K)
            self._counts_R2K = np.concatenate([self._counts_R2K, np.zeros((missing, 2, points))])
            self._tables_RK = np.concatenate([self._tables_RK, np.zeros((missing, points))])
            self._own_R = np.append(self._own_R, np.zeros(missing, np.bool_))
            self._seen_R = np.append(self._seen_R, np.zeros(missing))
            self._refresh_at_R = np.append(self._refresh_at_R, np.full(missing, float(FIRST_REFRESH)))
