"""Between a policy and the engine: whatever a policy does, decoding goes on.

Illegal decisions are moved to the nearest legal one, exceptions are caught; every case is counted by kind and logged
once per kind, never once per step. A decision that is legal as it stands costs about a microsecond.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from adaptive.contract import (
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    IntArray,
    Needs,
    Policy,
    StepReport,
    StepView,
    floor_gamma,
)
from adaptive.legal import Rules, Stepwise, Trimming
from adaptive.stats import Telling
from adaptive.trimming import lawful

# No NullHandler: a policy that misbehaves should be seen on stderr even where nobody set up logging.
logger = logging.getLogger(__name__)

OFF = Decision(0, reason="off")


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """`dwell`: least steps between two changes of γ (0: none; policies that set `Needs.self_paced` have their own).

    `patience`: after this many failed decisions in a row the last good γ is no longer trusted and γ is 0.
    """

    dwell: int = 0
    patience: int = 32

    def __post_init__(self) -> None:
        for name, value in (("dwell", self.dwell), ("patience", self.patience)):
            if value < 0:
                raise ValueError(f"{name}={value!r} is not valid: give a number of steps, 0 or above")


class Faults:
    """What went wrong, by kind: `clamped` decisions and `errors` (exceptions, by the method that raised)."""

    def __init__(self) -> None:
        self.clamped: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.last: str | None = None
        self._logged: set[str] = set()

    def clamp(self, kind: str, message: str) -> None:
        self.clamped[kind] += 1
        self.last = message
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("illegal decision corrected: %s (more of kind %r are counted only)", message, kind)

    def error(self, where: str, error: Exception) -> None:
        self.errors[where] += 1
        self.last = f"{where}: {type(error).__name__}: {error}"
        if f"{where}()" not in self._logged:
            self._logged.add(f"{where}()")
            logger.warning("policy error caught in %s (more are counted only)", self.last, exc_info=error)

    def log_afresh(self) -> None:
        """A new policy's first fault of a kind is news again."""
        self._logged.clear()


class Guard:
    """Calls the policy on the controller's behalf. `needs` are as `checked_needs` gives them."""

    def __init__(self, config: GuardConfig, caps: Capabilities, needs: Needs, *, allow_lossy: bool) -> None:
        self.config = config
        self.faults = Faults()
        self.held = 0
        """Decisions whose γ the dwell put off."""
        self.speculation = True
        """The kill switch: while False every decision is γ=0 and the policy is not asked."""
        self._allow_lossy = allow_lossy
        self._gamma = 0
        self._changed_at = -config.dwell
        self.adopt(caps, needs)

    def adopt(self, caps: Capabilities, needs: Needs) -> None:
        """Judge by these from the next decision on."""
        self._rules = Rules(caps, needs, allow_lossy=self._allow_lossy)
        self._dwell = 0 if needs.self_paced else self.config.dwell
        self._failures = 0
        self.faults.log_afresh()

    def decide(self, policy: Policy, view: StepView) -> Decision:
        """The policy's decision, or the nearest legal one, or the last good γ, or γ=0."""
        try:
            decision: Decision | None = policy.decide(view)
            if type(decision) is not Decision or not self._rules.plain(decision, view.num_decode):
                decision = self._rules.mend(decision, view.num_decode, self.faults.clamp)
        except Exception as error:
            self.faults.error("decide", error)
            decision = None
        if decision is None:
            return self._fall_back(view)
        self._failures = 0
        return decision if decision.gamma == self._gamma else self._change(decision, view)

    def extend(self, policy: Policy, progress: DraftProgress) -> BoolArray:
        """`[B]`; where the policy fails, drafting stops."""
        batch = len(progress.rows)
        try:
            # `checked_needs` saw to it when the policy was bound; asking again takes longer than the answer.
            more = np.asarray(cast(Stepwise, policy).extend(progress))
        except Exception as error:
            self.faults.error("extend", error)
            return np.zeros(batch, np.bool_)
        if more.shape == (batch,) and more.dtype == np.bool_:
            return more
        self.faults.clamp("extend", f"extend returned {more!r} instead of {batch} booleans")
        return np.zeros(batch, np.bool_)

    def trim(
        self, policy: Policy, progress: DraftProgress, view: StepView, decision: Decision
    ) -> int | IntArray | None:
        """A budget or lengths for the step of `decision`; None, the decision's own, where the policy fails."""
        note = self.faults.clamp
        try:
            answer = cast(Trimming, policy).trim(progress)
            verify = self._rules.verify(answer, decision.gamma, len(progress.rows), note)
            return lawful(verify, decision, view, progress, note)
        except Exception as error:
            self.faults.error("trim", error)
            return None

    def learn(self, policy: Policy, view: StepView, decision: Decision, report: StepReport) -> None:
        try:
            policy.learn(view, decision, report)
        except Exception as error:
            self.faults.error("learn", error)

    def forget(self, policy: Policy, rows: Sequence[int]) -> None:
        try:
            policy.forget(rows)
        except Exception as error:
            self.faults.error("forget", error)

    def metrics(self, policy: Policy) -> Mapping[str, float]:
        """What the policy tells of itself; nothing where it fails or has nothing to tell."""
        if not isinstance(policy, Telling):
            return {}
        try:
            return dict(policy.metrics())
        except Exception as error:
            self.faults.error("metrics", error)
            return {}

    def _change(self, decision: Decision, view: StepView) -> Decision:
        """γ moves, unless it moved less than `dwell` steps ago and may stay in this batch."""
        young = 0 <= view.step - self._changed_at < self._dwell
        legal = self._gamma in self._rules.reach(view.num_decode)
        if young and legal and self._gamma <= self._rules.deepest(decision.drafter):
            self.held += 1
            return replace(decision, gamma=self._gamma, verify=None, confidence=None, tree=None, reason="dwell")
        self._gamma = decision.gamma
        self._changed_at = view.step
        return decision

    def _fall_back(self, view: StepView) -> Decision:
        self._failures += 1
        trusted = self._gamma if self._failures <= self.config.patience else 0
        gamma = floor_gamma(self._rules.reach(view.num_decode), trusted)
        if gamma != self._gamma:
            self._gamma = gamma
            self._changed_at = view.step
        return Decision(gamma, reason="fallback")
