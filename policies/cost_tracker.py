"""A cost model in use: corrected slowly by what steps really took, its error watched."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from adaptive.contract import CostModel, StepReport, StepView
from policies.cost_fit import StepSample

CORRECTION_RATE = 0.02
ERROR_RATE = 0.05
FARTHEST = 1.0  # of a step's log ratio: a stall of the machine says nothing about the model
CONTEXT_GRAIN = 16
REMEMBERED = 8192
CURVES_REMEMBERED = 256


def sample_of(view: StepView, report: StepReport) -> StepSample | None:
    """The step as a sample; None where its time was not measured, or a prompt was worked on meanwhile."""
    timed = not (math.isnan(report.step_s) and math.isnan(report.verify_s))
    if not timed or report.num_prefill_tokens or not len(report.rows):
        return None
    return StepSample(
        batch=len(report.rows),
        gamma=int(np.maximum.reduce(report.drafted)) or report.gamma,
        tokens=len(report.rows) + int(np.add.reduce(report.verified)),
        context=int(np.add.reduce(view.context_lens)),
        step_s=report.step_s,
        draft_s=report.draft_s,
        verify_s=report.verify_s,
    )


class CostTracker:
    """`model`, each half times a factor that follows the measured times.

    `error` is a running mean of |measured / predicted - 1| over whole steps (a stall counts as 1 at most), nan before
    the first. `steps` counts what it was learnt from.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.draft_factor = 1.0
        self.verify_factor = 1.0
        self.error = float("nan")
        self.steps = 0
        self._known: dict[tuple[int, int, int, int], tuple[float, float]] = {}
        self._curves: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], list[tuple[float, float]]] = {}

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        """Corrected seconds to draft γ tokens per row."""
        return self.draft_factor * self.model.draft_s(batch, gamma, context_tokens)

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        """Corrected seconds of everything but drafting."""
        return self.verify_factor * self.model.verify_s(batch, verify_tokens, context_tokens)

    def step_s(self, batch: int, gamma: int, verify_tokens: int, context_tokens: int) -> float:
        """Corrected seconds of a whole step."""
        draft, verify = self._halves(batch, gamma, verify_tokens, grained(context_tokens))
        return self.draft_factor * draft + self.verify_factor * verify

    def curve(self, batch: int, context_tokens: int, gammas: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
        """Whole steps `[G]` for each of `gammas`, which verify `tokens[g]` packed tokens."""
        context, draft_factor, verify_factor = grained(context_tokens), self.draft_factor, self.verify_factor
        key = (batch, context, gammas, tokens)
        halves_G = self._curves.get(key)
        if halves_G is None:
            if len(self._curves) >= CURVES_REMEMBERED:
                self._curves.clear()
            pairs = zip(gammas, tokens, strict=True)
            halves_G = self._curves[key] = [self._halves(batch, gamma, count, context) for gamma, count in pairs]
        return [draft_factor * draft + verify_factor * verify for draft, verify in halves_G]

    def _halves(self, batch: int, gamma: int, tokens: int, context: int) -> tuple[float, float]:
        """Uncorrected, and remembered: asking the model takes ten times as long."""
        key = (batch, gamma, tokens, context)
        halves = self._known.get(key)
        if halves is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            model = self.model
            halves = model.draft_s(batch, gamma, context), model.verify_s(batch, tokens, context)
            self._known[key] = halves
        return halves

    def learn(self, sample: StepSample) -> None:
        """Correct both halves, together where they were not timed apart."""
        tokens = sample.tokens if sample.plain else max(sample.tokens, sample.batch + 1)
        draft = self.draft_s(sample.batch, sample.gamma, sample.context)
        rest = self.verify_s(sample.batch, tokens, sample.context)
        total = sample.total_s
        if not (total > 0 and draft + rest > 0):
            return
        self._watch(min(abs(total / (draft + rest) - 1), 1.0))
        if sample.gamma and math.isnan(sample.draft_s):
            self.draft_factor *= _step(total, draft + rest)
            self.verify_factor *= _step(total, draft + rest)
        else:
            self.verify_factor *= _step(sample.rest_s, rest)
            if sample.gamma:
                self.draft_factor *= _step(sample.draft_s, draft)

    def _watch(self, error: float) -> None:
        self.steps += 1
        rate = max(ERROR_RATE, 1 / self.steps)
        before = 0.0 if math.isnan(self.error) else self.error
        self.error = before + rate * (error - before)


@lru_cache(maxsize=1024)
def grained(context: int) -> int:
    """Lengths within a sixteenth of each other share a prediction."""
    grain = max((1 << max(context.bit_length() - 1, 0)) // CONTEXT_GRAIN, 1)
    return context // grain * grain


def _step(measured: float, predicted: float) -> float:
    """The factor that closes a small part of the gap between two durations."""
    if not (measured > 0 and predicted > 0):
        return 1.0
    return math.exp(CORRECTION_RATE * max(-FARTHEST, min(FARTHEST, math.log(measured / predicted))))
