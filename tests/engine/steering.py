"""A controller that pulls every lever within a step at random, and keeps what it asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptive.contract import (
    DRAFT_SIGNALS,
    STANDARD,
    Acceptance,
    BoolArray,
    Capabilities,
    Confidence,
    Decision,
    DraftProgress,
    DraftStop,
    FloatArray,
    IntArray,
    Needs,
    Signal,
    StepReport,
    StepView,
)
from engine.control import PASSES_ABOVE
from tests.engine.tiny import Cycling, Shape

SCALE = {"top_prob": 1.0, "margin": 1.0, "entropy": 3.0}  # of what models of a dozen tokens say


class Steering(Cycling):
    """Budgets, lengths, weights, targets, thresholds; with `stepwise` also answers between draft steps.

    All is drawn afresh at each step from `seed`, and depends on no token.
    """

    def __init__(
        self, gammas: Sequence[Shape], seed: int = 0, acceptance: Acceptance = STANDARD, *, stepwise: bool = False
    ) -> None:
        super().__init__(gammas, acceptance)
        self.stepwise = stepwise
        self.decisions: list[Decision] = []
        self.asked: list[list[DraftProgress]] = []
        self.limits: list[dict[int, int]] = []
        self.signals: frozenset[Signal] = frozenset()
        self._rng = np.random.default_rng(seed)

    def attach(self, caps: Capabilities) -> Needs:
        self.signals = frozenset[Signal]().union(*(drafter.signals for drafter in caps.drafters.values()))
        needs = super().attach(caps)
        asked = self.stepwise and caps.stepwise
        return replace(needs, signals=self.signals, budget=True, stepwise=asked, trim=asked)

    def plan(self, view: StepView) -> Decision:
        plain, batch, rng = super().plan(view), len(view.rows), self._rng
        gamma, verify = plain.gamma, self._verify(plain.gamma, batch)
        known = sorted(self.signals & {*DRAFT_SIGNALS, "match_len"})
        names = [name for name in known if name in DRAFT_SIGNALS]
        confidence = stop = target = None
        if rng.random() < 0.5:
            signal = known[rng.integers(len(known))]
            confidence = Confidence(signal, rng.normal(0, 3, gamma), rng.normal(0, 2, gamma))
        if names and rng.random() < 0.5:
            signal = names[rng.integers(len(names))]
            wide = SCALE[signal] * rng.random(batch)
            stop = DraftStop(signal, wide if rng.random() < 0.5 else float(wide[0]))
        if rng.random() < 0.3:
            target = rng.random(batch) * (gamma + 2)
        decision = replace(plain, verify=verify, confidence=confidence, draft_stop=stop, row_target=target)
        self.decisions.append(decision)
        self.asked.append([])
        self.limits.append({})
        return decision

    def _verify(self, gamma: int, batch: int) -> int | IntArray | None:
        kind = int(self._rng.integers(4))
        if kind == 3:
            return self._rng.integers(0, gamma + 1, batch)
        return int(self._rng.integers(batch, batch * (gamma + 1) + 1)) if kind else None

    def extend(self, progress: DraftProgress) -> BoolArray:
        self.asked[-1].append(progress)
        more: BoolArray = self._rng.random(len(progress.rows)) < 0.7
        for row in progress.rows[~more].tolist():
            self.limits[-1].setdefault(row, progress.position + 1)
        return more

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        answer = self._verify(self.decisions[-1].gamma, len(progress.rows))
        if answer is not None:
            self.decisions[-1] = replace(self.decisions[-1], verify=answer)
        return answer


def expected_drafts(decision: Decision, limits: dict[int, int], report: StepReport, reach: int, place: int) -> int:
    """What a row that could draft `reach` tokens drafts, from the signals that were reported of it."""
    if decision.draft_stop is not None and report.signals is not None:
        values = report.signals[decision.draft_stop.signal][place, :reach]
        threshold = np.broadcast_to(decision.draft_stop.threshold, report.rows.shape)[place]
        passed = values > threshold if decision.draft_stop.signal in PASSES_ABOVE else values < threshold
        reach = min(reach, int(passed.argmax()) + 1 if passed.any() else reach)
    return min(reach, limits.get(int(report.rows[place]), reach))


def sigmoid(x: FloatArray) -> FloatArray:
    wide: FloatArray = 1 / (1 + np.exp(-x))
    return wide


def expected_split(decision: Decision, view: StepView, report: StepReport) -> list[int]:
    """Who gets how much, by a loop that hands out one token at a time to the row whose next is worth most."""
    batch, gamma = len(report.rows), report.gamma
    if not isinstance(decision.verify, int) or not gamma:
        lens = report.drafted if decision.verify is None else np.minimum(report.drafted, decision.verify)
        return [int(length) for length in lens]
    logits = np.zeros((batch, gamma))
    if decision.confidence is not None:
        signal = decision.confidence.signal
        values = view.match_len if signal == "match_len" else (report.signals or {})[signal]
        assert values is not None
        values = values[:, None] if values.ndim == 1 else values
        logits = decision.confidence.weight * values + decision.confidence.bias
    survival = sigmoid(logits).cumprod(1)
    target = decision.row_target if decision.row_target is not None else np.full(batch, -np.inf)
    taken = [0] * batch
    for _ in range(max(0, decision.verify - batch)):
        offers = []
        for row in range(batch):
            place = taken[row]
            if place < report.drafted[row]:
                missing = target[row] - 1 - survival[row, :place].sum()
                score = 1 + missing if missing > 0 else survival[row, place]
                offers.append((-score, place, row))
        if not offers:
            break
        taken[min(offers)[2]] += 1
    return taken
