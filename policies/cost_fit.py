"""From timed steps to a `StepCost`: one robust linear least-squares problem, then a correction per measured width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from adaptive.contract import FloatArray, Identity
from policies.cost import Knots, StepCost, pad

DRAFT, VERIFY, PLAIN = slice(0, 4), slice(4, 9), slice(9, 12)
OUTLIER = 0.05  # share of a step past which an error counts linearly, not squared
FEWEST_AT_KNOT = 2


class StepSample(NamedTuple):
    """One timed step. `tokens` are packed tokens, roots included; seconds are nan where not timed.

    `step_s` is the whole step; what of it was not drafting counts as verification, the host's work included.
    """

    batch: int
    gamma: int
    tokens: int
    context: int
    step_s: float = float("nan")
    draft_s: float = float("nan")
    verify_s: float = float("nan")

    @property
    def plain(self) -> bool:
        return self.tokens <= self.batch and self.gamma == 0

    @property
    def rest_s(self) -> float:
        """Everything but drafting; nan where the two can not be told apart."""
        if self.gamma == 0:
            return self.verify_s if math.isnan(self.step_s) else self.step_s
        return self.verify_s if math.isnan(self.step_s) else self.step_s - self.draft_s

    @property
    def total_s(self) -> float:
        """The whole step, added up where only its pieces are known."""
        if not math.isnan(self.step_s):
            return self.step_s
        return self.verify_s if self.gamma == 0 else self.draft_s + self.verify_s


def fit_cost(
    samples: Iterable[StepSample],
    *,
    batches: Sequence[int] = (),
    widths: Sequence[int] = (),
    contexts: Sequence[int] = (),
    identity: Identity | None = None,
    label: str = "",
) -> StepCost:
    """The `StepCost` that explains `samples` best: coefficients ≥ 0, soft-L1 loss on errors relative to the step.

    Samples without split times enter as a whole. Without a step at γ = 0 plain decode is taken for a verification of
    one token per row. ValueError without a timed step at γ > 0.
    """
    known = [one for one in samples if one.total_s > 0]
    if not any(one.gamma for one in known):
        raise ValueError(f"{len(known)} timed steps, none of them at gamma above 0: time some that draft")
    captured = tuple(batches), tuple(widths), tuple(contexts)
    cost = StepCost((0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 0), *captured)
    rows, aims = _problem(known, cost)
    solution = _solve(rows, aims)
    draft, verify, plain = (tuple(solution[part].tolist()) for part in (DRAFT, VERIFY, PLAIN))
    if not any(one.gamma == 0 for one in known):
        plain = (verify[0], verify[1] + verify[2], verify[3] + verify[4])
    cost = replace(cost, draft=draft, verify=verify, plain=plain, identity=identity, label=label, samples=len(known))
    cost = replace(cost, verify_knots=_verify_knots(known, cost), plain_knots=_plain_knots(known, cost))
    return replace(cost, error=median_error(cost, known))


def predicted_s(cost: StepCost, sample: StepSample) -> float:
    """The whole step."""
    drafting = cost.draft_s(sample.batch, sample.gamma, sample.context)
    return drafting + cost.verify_s(sample.batch, _tokens(sample), sample.context)


def median_error(cost: StepCost, samples: Sequence[StepSample]) -> float:
    """Median of |predicted / measured - 1| over whole steps; nan without one."""
    errors = [abs(predicted_s(cost, one) / one.total_s - 1) for one in samples if one.total_s > 0]
    return float(np.median(errors)) if errors else float("nan")


def _tokens(sample: StepSample) -> int:
    """A step that may draft but found nothing runs a verify bundle, not the plain one."""
    return sample.tokens if sample.plain else max(sample.tokens, sample.batch + 1)


def _features(sample: StepSample, cost: StepCost) -> FloatArray:
    """Of the whole step `[12]`, seconds per coefficient."""
    row = np.zeros(12)
    batch, rows = sample.batch, pad(cost.batches, sample.batch)
    context = cost.read(batch, _tokens(sample), sample.context)
    if sample.plain:
        row[PLAIN] = (1, rows, context)
        return row
    tokens = pad(cost.widths, _tokens(sample))
    drafting = cost.read(batch, batch * (sample.gamma + 1), sample.context)
    row[DRAFT] = (sample.gamma, sample.gamma * rows, sample.gamma * drafting, 1)
    row[VERIFY] = (1, rows, tokens, context, tokens * context / rows)
    return row


def _problem(samples: Sequence[StepSample], cost: StepCost) -> tuple[FloatArray, FloatArray]:
    """Linear equations, each divided by its step's seconds."""
    rows: list[FloatArray] = []
    aims: list[float] = []
    for sample in samples:
        features, total = _features(sample, cost) / sample.total_s, sample.total_s
        if sample.gamma == 0 or math.isnan(sample.draft_s):
            rows.append(features)
            aims.append(1.0)
            continue
        for part, seconds in ((DRAFT, sample.draft_s), (VERIFY, sample.rest_s)):
            piece = np.zeros(12)
            piece[part] = features[part]
            rows.append(piece)
            aims.append(seconds / total)
    return np.array(rows), np.array(aims)


def _solve(rows: FloatArray, aims: FloatArray) -> FloatArray:
    # Half a second to import: only who fits should wait for it.
    from scipy.optimize import least_squares, nnls

    # Features span six orders of magnitude; a column that never occurs stays at 0.
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    matrix = rows / scale
    start, _ = nnls(matrix, aims)
    fitted = least_squares(
        lambda x: matrix @ x - aims,
        np.maximum(start, 1e-9),
        jac=lambda x: matrix,
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=OUTLIER,
    )
    solution: FloatArray = np.where(matrix.any(axis=0), fitted.x, 0.0) / scale
    return solution


def _verify_knots(samples: Sequence[StepSample], cost: StepCost) -> Knots:
    """Per measured width; where pieces were not timed, drafting is taken as predicted."""
    ratios = []
    for one in samples:
        if not one.plain:
            drafting = one.draft_s if not math.isnan(one.draft_s) else cost.draft_s(one.batch, one.gamma, one.context)
            smooth = cost.verify_s(one.batch, _tokens(one), one.context)
            ratios.append((pad(cost.widths, _tokens(one)), one.total_s - drafting, smooth))
    return _knots(ratios)


def _plain_knots(samples: Sequence[StepSample], cost: StepCost) -> Knots:
    ratios = [
        (pad(cost.batches, one.batch), one.total_s, cost.verify_s(one.batch, one.batch, one.context))
        for one in samples
        if one.plain
    ]
    return _knots(ratios)


def _knots(ratios: list[tuple[int, float, float]]) -> Knots:
    """Median log ratio per width, where at least `FEWEST_AT_KNOT` steps were timed."""
    valid = sorted((width, math.log(seconds / smooth)) for width, seconds, smooth in ratios if min(seconds, smooth) > 0)
    knots = []
    for width, group in groupby(valid, key=lambda pair: pair[0]):
        logs = [log for _, log in group]
        if len(logs) >= FEWEST_AT_KNOT:
            knots.append((width, float(np.median(logs))))
    return tuple(knots)
