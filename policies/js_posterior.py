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
UNSEEN = 1e-9  # a density this small says nothing
FIRST_REFRESH = 8
ROWS_PER_REFRESH = 4


class JsPosterior:
    """Tables `[K]` of P(A|d) at K equally spaced distances from 0 to 1: one for all requests, one for each.

    A request's table is made anew when what it has seen has doubled; until then it is the one of all requests.
    """

    def __init__(self, points: int = POINTS) -> None:
        self.grid_K: FloatArray = np.linspace(0.0, 1.0, points)
        widths_L11 = np.geomspace(NARROWEST, WIDEST, LEVELS)[:, None, None]
        distance_KK = self.grid_K[:, None] - self.grid_K
        self._kernels_LKK = np.exp(-0.5 * (distance_KK / widths_L11) ** 2) / (widths_L11 * np.sqrt(2 * np.pi))
        self._powers_K3 = np.stack([np.ones(points), self.grid_K - 0.5, (self.grid_K - 0.5) ** 2], axis=1)
        self._level_scale = (LEVELS - 1) / np.log(WIDEST / NARROWEST)
        self.shared_2K: FloatArray = np.zeros((2, points))
        """Counts of all requests: rejected, accepted."""
        self.samples = (0, 0)
        """Distances counted: rejected, accepted (those of exactly 0 or 1 are not)."""
        self._shared_table_K: FloatArray = np.zeros(points)
        self._stale = 0
        self._counts_R2K: FloatArray = np.zeros((0, 2, points))
        self._tables_RK: FloatArray = np.zeros((0, points))
        self._own_R: BoolArray = np.zeros(0, np.bool_)
        self._seen_R: FloatArray = np.zeros(0)
        self._refresh_at_R: FloatArray = np.zeros(0)

    def tables(self, rows_B: IntArray) -> FloatArray:
        """`[B, K]`, 1 at distance 0 and 0 at distance 1."""
        try:
            return self._tables_RK.take(rows_B, axis=0)
        except IndexError:
            self._make_room(rows_B)
            return self.tables(rows_B)

    def density(self, accepted: bool) -> FloatArray:
        """The kernel density `[K]` of all requests' accepted or rejected distances, at the grid."""
        counts_2K = self.shared_2K[int(accepted)][None]
        density: FloatArray = self._smooth(counts_2K)[0] / counts_2K.sum()
        return density

    def learn(self, rows_C: IntArray, row_N: IntArray, distances_N: FloatArray, accepted_N: BoolArray) -> None:
        """Count verified tokens of `rows_C` (all different): place in `rows_C`, distance and outcome of each."""
        inside_N = (distances_N > 0) & (distances_N < 1)
        if not np.logical_and.reduce(inside_N):
            row_N, distances_N, accepted_N = row_N[inside_N], distances_N[inside_N], accepted_N[inside_N]
        count = len(row_N)
        if not count:
            return
        if int(np.maximum.reduce(rows_C)) >= len(self._seen_R):
            self._make_room(rows_C)
        self._count(rows_C[row_N], accepted_N, distances_N)
        accepted = int(np.count_nonzero(accepted_N))
        self.samples = self.samples[0] + count - accepted, self.samples[1] + accepted
        self._seen_R[rows_C] += np.bincount(row_N, minlength=len(rows_C))
        self._stale += count
        self._refresh()

    def forget(self, rows: Sequence[int]) -> None:
        """These rows start again from the table of all requests; unknown rows are ignored."""
        for row in rows:
            if row < len(self._seen_R):
                self._counts_R2K[row] = 0.0
                self._seen_R[row] = 0.0
                self._own_R[row] = False
                self._tables_RK[row] = self._shared_table_K
                self._refresh_at_R[row] = FIRST_REFRESH

    def _count(self, rows_N: IntArray, accepted_N: BoolArray, distances_N: FloatArray) -> None:
        """Each distance goes to the two grid points around it, in its row's list of its outcome and in that of all."""
        points = len(self.grid_K)
        place_N = distances_N * (points - 1)
        low_N = np.minimum(place_N.astype(np.int64), points - 2)
        upper_N = place_N - low_N
        lower_N = 1 - upper_N
        shared_N = low_N + points * accepted_N
        own_N = shared_N + 2 * points * rows_N
        counts_X, shared_X = self._counts_R2K.reshape(-1), self.shared_2K.reshape(-1)
        np.add.at(counts_X, own_N, lower_N)
        np.add.at(counts_X, own_N + 1, upper_N)
        shared_X += np.bincount(shared_N, weights=lower_N, minlength=2 * points)
        shared_X += np.bincount(shared_N + 1, weights=upper_N, minlength=2 * points)

    def _refresh(self) -> None:
        """Tables whose evidence has grown enough; of many rows a few at a time, those that lag most first."""
        total = sum(self.samples)
        stale = self._stale * 8 >= total
        due = (self._seen_R >= self._refresh_at_R).nonzero()[0]
        if not stale and not len(due):
            return
        if len(due) > ROWS_PER_REFRESH:
            lag = self._seen_R[due] / self._refresh_at_R[due]
            due = due[np.argpartition(lag, -ROWS_PER_REFRESH)[-ROWS_PER_REFRESH:]]
        own_B2K = self._counts_R2K[due] + self.shared_2K * (PRIOR_WEIGHT / total)
        # One call for all: it costs about the same for one row and for five.
        tables_BK = self._posterior(np.concatenate((own_B2K, self.shared_2K[None])))
        if stale:
            self._shared_table_K = tables_BK[-1]
            self._tables_RK[~self._own_R] = self._shared_table_K
            self._stale = 0
        self._tables_RK[due] = tables_BK[:-1]
        self._own_R[due] = True
        self._refresh_at_R[due] = 2 * self._seen_R[due]

    def _posterior(self, counts_B2K: FloatArray) -> FloatArray:
        """P(A|d) `[B, K]`: sums of kernels weigh the two outcomes by how often they occurred."""
        batch, _, points = counts_B2K.shape
        mass_B2K = self._smooth(counts_B2K.reshape(2 * batch, points)).reshape(batch, 2, points)
        accepted_BK = mass_B2K[:, 1]
        total_BK = mass_B2K[:, 0] + accepted_BK
        count_B2 = np.add.reduce(counts_B2K, axis=2)
        prior_B = count_B2[:, 1] / np.maximum(count_B2[:, 0] + count_B2[:, 1], 1e-9)
        # Far from all that was seen both densities vanish and only the prior is left.
        posterior_BK: FloatArray = (accepted_BK + UNSEEN * prior_B[:, None]) / (total_BK + UNSEEN)
        posterior_BK[:, 0], posterior_BK[:, -1] = 1.0, 0.0
        return posterior_BK

    def _smooth(self, counts_BK: FloatArray) -> FloatArray:
        """The sum of one kernel per counted distance, at the grid; Silverman's width for one dimension."""
        sums_B3 = counts_BK @ self._powers_K3
        count_B = np.maximum(sums_B3[:, 0], 1e-9)
        # The sum of squares around the mean, from those around the middle of the grid: precise enough in doubles.
        spread_B = np.maximum(sums_B3[:, 2] - sums_B3[:, 1] ** 2 / count_B, 0) / np.maximum(count_B - 1, 1e-9)
        width_B = np.maximum(np.sqrt(spread_B), FLOOR) * (0.75 * count_B) ** -0.2
        place_B = np.rint(np.log(width_B / NARROWEST) * self._level_scale)
        level_B = np.minimum(np.maximum(place_B, 0), LEVELS - 1).astype(np.int64)
        smooth_BK1: FloatArray = self._kernels_LKK[level_B] @ counts_BK[:, :, None]
        return smooth_BK1[:, :, 0]

    def _make_room(self, rows_B: IntArray) -> None:
        """For rows not heard of before."""
        missing = int(rows_B.max()) + 1 - len(self._seen_R)
        points = len(self.grid_K)
        self._counts_R2K = np.concatenate([self._counts_R2K, np.zeros((missing, 2, points))])
        self._tables_RK = np.concatenate([self._tables_RK, np.tile(self._shared_table_K, (missing, 1))])
        self._own_R = np.append(self._own_R, np.zeros(missing, np.bool_))
        self._seen_R = np.append(self._seen_R, np.zeros(missing))
        self._refresh_at_R = np.append(self._refresh_at_R, np.full(missing, float(FIRST_REFRESH)))
