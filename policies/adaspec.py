"""AdaSpec: draft as deep as expected tokens per second say, within the time per token that requests were promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptive.contract import (
    BoolArray,
    Capabilities,
    CostModel,
    Decision,
    DraftProgress,
    FloatArray,
    IntArray,
    Needs,
    StepReport,
    StepView,
)
from policies.acceptance import WINDOW, MeasuredSurvival, Reach, Reliability, RunningConfidence
from policies.classes import ClassShares
from policies.cost import StepCost
from policies.cost_online import OnlineCost
from policies.cost_published import PUBLISHED_COSTS, published_cost
from policies.cost_tracker import CostTracker, sample_of
from policies.drafting import Drafting
from policies.ema import EmaTiers
from policies.goodput import Choice, Outlook, choose, strain
from policies.probes import Probes
from policies.rows import sampled_rows

SILENT_AFTER = 8  # steps that drafted and told no confidence, after which none is expected
TRUSTED_AFTER = 16  # timed steps before the prediction error is held against a model
SHARE_RATE = 0.1
PROBE_MEMORY = 8.0  # draft tokens that what was learnt before a probe counts for at most


class AdaSpec:
    """γ of most goodput: tokens expected of the batch over predicted seconds of the step.

    The tokens come from the drafter's confidence (signal `top_prob`), the seconds from `cost`: a `CostModel`, a
    profile written by `adaptive profile`, the name of a published model; None takes the engine's own, or, where it has
    none, runs `EmaTiers` until enough steps were timed to fit one. `EmaTiers` also takes over while the predicted
    seconds are off by more than `error_bound` on average.

    On a `stepwise` engine the first token decides about the second, and so on (`extend`). Otherwise γ is chosen
    beforehand from the running mean of confidences, and without confidences from measured acceptance: `degraded` then
    says why. Requests with a `tpot_slo` bound the choice by their predicted time per token; where no γ keeps all
    limits, the one of least strain runs and the reason is `slo_infeasible`.

    `calibrate` learns what confidences are worth; `pooled` and `window` are those of `RunningConfidence`. `hysteresis`
    keeps a γ within that share of the best. Without `look_ahead` nothing is drafted unless the first token alone is
    expected to pay. `trim` cuts greedy rows after drafting, as published.

    Source: AdaSpec (arXiv 2503.05096) as its authors' code has it; `AdaSpec.published()` is that rule.

    >>> from adaptive.contract import Capabilities
    >>> policy = AdaSpec(cost="llama-8b-h100-ngram", max_gamma=3)
    >>> policy.bind(Capabilities(gammas=(0, 1, 2, 4), batch_buckets=(1, 8))).gammas[8]
    (0, 1, 2)
    """

    def __init__(
        self,
        *,
        cost: CostModel | str | Path | None = None,
        max_gamma: int = 8,
        drafter: str | None = None,
        calibrate: bool = True,
        pooled: bool = False,
        window: float | None = WINDOW,
        hysteresis: float = 0.01,
        error_bound: float = 0.5,
        look_ahead: bool = True,
        trim: bool = False,
    ) -> None:
        for name, value, least in (
            ("max_gamma", max_gamma, 1),
            ("window", 1.0 if window is None else window, 1),
            ("hysteresis", hysteresis, 0),
            ("error_bound", error_bound, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value!r} is not valid: give {least} or above")
        self.cost = _cost_model(cost)
        self.max_gamma = max_gamma
        self.drafter = drafter
        self.calibrate = calibrate
        self.pooled = pooled
        self.window = window
        self.hysteresis = hysteresis
        self.error_bound = error_bound
        self.look_ahead = look_ahead
        self.trim_greedy = trim
        self._reset((0,), confident=False)

    def _reset(self, offered: tuple[int, ...], *, confident: bool) -> None:
        positions = max(offered[-1], 1)
        self._offered = offered
        self._places_G: IntArray = np.array(offered, dtype=np.int64)
        self._confident = confident
        self._stepwise = self._trims = False
        self._widths: tuple[int, ...] = ()
        self._tracker: CostTracker | None = None
        self._online: OnlineCost | None = None
        self._ema = EmaTiers()
        self._measured = MeasuredSurvival(positions, window=self.window or WINDOW)
        self._running = RunningConfidence(positions, pooled=self.pooled, window=self.window)
        self._reliability = Reliability()
        self._reach = Reach(positions)
        self._classes = ClassShares()
        self._share = 1.0  # of the rows that may draft, those that found something to draft
        self._gamma: int | None = None
        self._batch = 0
        self._probes = Probes()
        self._silent, self._heard = 0, False
        self._drafting: Drafting | None = None
        self._greedy_B: BoolArray = np.zeros(0, np.bool_)

    @classmethod
    def published(cls, cost: CostModel | str | Path | None = None) -> Self:
        """As the authors' code has it: raw confidence, one lifetime mean from .6, γ up to 8, trimming (greedy rows)."""
        return cls(cost=cost, calibrate=False, pooled=True, window=None, hysteresis=0.0, look_ahead=False, trim=True)

    # --- what a metric may show -----------------------------------------------------------------------------------

    @property
    def degraded(self) -> str | None:
        """Why acceptance is measured rather than foretold, None where it is foretold."""
        return None if self._foretold else "no drafter here tells its confidence: acceptance is measured instead"

    @property
    def prediction_error(self) -> float:
        """Running mean of |measured / predicted step time - 1|; nan before the first timed step."""
        return float("nan") if self._tracker is None else self._tracker.error

    @property
    def survival(self) -> FloatArray:
        """Per position, the chance expected of a draft token and all before it to stand."""
        survival: FloatArray = np.cumprod(self._rates(), dtype=np.float64)
        return survival

    # --- the contract ---------------------------------------------------------------------------------------------

    def bind(self, caps: Capabilities) -> Needs:
        names = [self.drafter] if self.drafter else list(caps.drafters)
        if self.drafter and self.drafter not in caps.drafters:
            raise ValueError(f"drafter={self.drafter!r} is not offered by this engine: use {list(caps.drafters)}")
        drafters = [caps.drafters[name] for name in names]
        deepest = min([self.max_gamma, *(one.max_gamma for one in drafters)])
        offered = tuple(gamma for gamma in caps.gammas if gamma <= deepest)
        confident = any("top_prob" in one.signals for one in drafters)
        cost = self.cost or caps.cost
        if isinstance(cost, StepCost):
            cost.require(caps.identity)
        self._reset(offered, confident=confident)
        self._stepwise = confident and caps.stepwise
        self._trims = self._stepwise and caps.ragged and self.trim_greedy
        self._widths = caps.packed_widths
        self._tracker = None if cost is None else CostTracker(cost)
        self._online = OnlineCost(caps.batch_buckets) if cost is None else None
        self._ema.bind(replace(caps, gammas=offered))
        return Needs(
            {bucket: offered for bucket in caps.batch_buckets},
            drafters=frozenset({self.drafter}) if self.drafter else frozenset(),
            signals=frozenset({"top_prob"}) if confident else frozenset(),
            stepwise=self._stepwise,
            budget=self._trims,
            trim=self._trims,
            self_paced=True,
        )

    def decide(self, view: StepView) -> Decision:
        self._drafting = None
        self._batch = view.num_decode
        tracker = self._tracker
        if tracker is None:
            return self._fall_back(view, "ema_no_cost")
        if tracker.steps >= TRUSTED_AFTER and tracker.error > self.error_bound:
            return self._fall_back(view, "ema_cost_error")
        rates_M = self._rates()
        outlook = self._outlook(view, tracker, rates_M)
        choice = choose(outlook, self._gamma, self.hysteresis)
        if choice.place and not self.look_ahead and outlook.goodput[1] <= outlook.goodput[0]:
            choice = choice._replace(place=0, reason="no_gain")
        if choice.place:
            self._probes.drafts()
        elif self._probing(view, choice):
            choice = choice._replace(place=1, reason="probe")
        self._gamma = self._offered[choice.place]
        if self._stepwise and self._foretold and self._gamma:
            return self._start_drafting(view, tracker, rates_M, choice)
        reason = "degraded" if choice.reason == "goodput" and not self._foretold else choice.reason
        return Decision(self._gamma, drafter=self.drafter, reason=reason)

    def extend(self, progress: DraftProgress) -> BoolArray:
        """Step-level speculation: whether to draft one more token, by the confidence in those drafted."""
        drafting = self._drafting
        confidence_B = progress.signals.get("top_prob")
        if drafting is None or confidence_B is None:
            return np.full(len(progress.rows), progress.position + 1 < (self._gamma or 0))
        self._heard = True
        chances_B = self._reliability.apply(confidence_B) if self.calibrate else confidence_B
        more_B = drafting.extend(chances_B)
        self._running.add_at(progress.position, drafting.newest_sum, drafting.newest_count)
        return more_B

    def trim(self, progress: DraftProgress) -> IntArray:
        """Request-level speculation: drafted lengths to verify `[B]`, once all are drafted."""
        drafting, confidence_BG = self._drafting, progress.signals.get("top_prob")
        if drafting is None or confidence_BG is None:
            return np.full(len(progress.rows), progress.position + 1)
        for position in range(len(drafting.history_KB), progress.position + 1):  # the last one was never asked about
            confidence_B = confidence_BG[:, position]
            drafting.extend(self._reliability.apply(confidence_B) if self.calibrate else confidence_B)
        return drafting.trimmed(self._greedy_B)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self._ema.learn(view, decision, report)
        sample = sample_of(view, report)
        if sample is not None:
            if self._tracker is not None:
                self._tracker.learn(sample)
            if self._online is not None and self._online.add(sample) and self._online.model is not None:
                self._tracker = CostTracker(self._online.model)
        if report.gamma == 0:
            self._measured.idle()
            self._running.idle()
            return
        drafted_B = report.live & (report.drafted > 0)
        if report.live.any():
            self._share += SHARE_RATE * (float(drafted_B.sum() / report.live.sum()) - self._share)
        if drafted_B.any():
            self._learn_acceptance(view, report, drafted_B)

    def forget(self, rows: Sequence[int]) -> None:
        self._ema.forget(rows)
        if rows:
            share = min(len(rows) / max(self._batch, 1), 1.0)
            self._measured.ease(share)
            self._running.ease(share)
            self._probes.ease(share)

    def clone(self) -> Self:
        return type(self)(
            cost=self.cost,
            max_gamma=self.max_gamma,
            drafter=self.drafter,
            calibrate=self.calibrate,
            pooled=self.pooled,
            window=self.window,
            hysteresis=self.hysteresis,
            error_bound=self.error_bound,
            look_ahead=self.look_ahead,
            trim=self.trim_greedy,
        )

    # --- inside ---------------------------------------------------------------------------------------------------

    def _rates(self) -> FloatArray:
        """Chance of each position to stand once those before it do `[M]`."""
        return self._running.rates if self._foretold else self._measured.rates

    @property
    def _foretold(self) -> bool:
        """Whether confidences are told, as the engine declared: a drafter in use may lack what another has."""
        return self._confident and self._silent < SILENT_AFTER

    def _probing(self, view: StepView, choice: Choice) -> bool:
        """Whether to draft one token although it is not expected to pay; what was learnt before then counts little."""
        possible = self.look_ahead and len(self._offered) > 1 and bool(choice.allowed_G[1])
        if not possible or self._drafting_rows(view)[1] == 0 or not self._probes.due(view.step):
            return False
        self._measured.forget_to(PROBE_MEMORY)
        self._running.forget_to(PROBE_MEMORY)
        return True

    def _fall_back(self, view: StepView, reason: str) -> Decision:
        decision = self._ema.decide(view)
        self._gamma = decision.gamma
        return Decision(decision.gamma, drafter=self.drafter, reason=reason)

    def _outlook(self, view: StepView, tracker: CostTracker, rates_M: FloatArray) -> Outlook:
        """Expected tokens and seconds of each γ on offer."""
        batch = view.num_decode
        depth_G, drafted_G = self._depths(rates_M)
        drafts_B, rows = self._drafting_rows(view)
        packed_G = batch + np.ceil(rows * drafted_G).astype(np.int64)
        packed_G[1:] = np.maximum(packed_G[1:], batch + 1)
        seconds_G = tracker.curve(batch, int(view.context_lens.sum()), self._offered, packed_G)
        strain_G = None
        if view.tpot_slo is not None:
            share_B = drafts_B * (1.0 if view.slo_class is None else self._classes.of(view.slo_class))
            strain_G = strain(seconds_G, depth_G, view.tpot_slo, share_B)
        return Outlook(self._offered, batch + rows * depth_G, seconds_G, strain_G)

    def _depths(self, rates_M: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of a row that drafts, tokens expected to stand and tokens drafted at each γ on offer `[G]`."""
        sums = np.zeros((2, len(rates_M) + 1))
        np.cumsum(self._reach.values * rates_M.cumprod(), out=sums[0, 1:])
        np.cumsum(self._reach.values, out=sums[1, 1:])
        depth_G, drafted_G = sums[:, self._places_G]
        return depth_G, drafted_G

    def _drafting_rows(self, view: StepView) -> tuple[FloatArray, float]:
        """Chance of each row `[B]` to draft, and how many rows that makes."""
        may_B = np.ones(view.num_decode) if view.may_speculate is None else view.may_speculate.astype(np.float64)
        # How long the match is is known before drafting, where the drafter copies text.
        drafts_B = may_B * (self._share if view.match_len is None else view.match_len > 0)
        return drafts_B, float(drafts_B.sum())

    def _start_drafting(self, view: StepView, tracker: CostTracker, rates_M: FloatArray, choice: Choice) -> Decision:
        """Leave the depth to `extend`, up to the deepest γ that the limits allow."""
        cap = self._offered[int(np.flatnonzero(choice.allowed_G)[-1])]
        context = int(view.context_lens.sum())
        self._drafting = Drafting(view.rows, context, cap, rates_M, tracker, self._widths)
        batch = view.num_decode
        self._greedy_B = np.zeros(batch, np.bool_) if view.greedy is None else view.greedy
        return Decision(cap, drafter=self.drafter, reason=choice.reason)

    def _learn_acceptance(self, view: StepView, report: StepReport, drafted_B: BoolArray) -> None:
        """From the rows that drafted."""
        verified, accepted = report.verified[drafted_B], report.accepted[drafted_B]
        limits = view.tpot_slo is not None and bool(np.isfinite(view.tpot_slo).any())
        if limits and view.slo_class is not None and len(view.slo_class) == len(drafted_B):
            depth = min(report.gamma, len(self._reach.values))
            expected = float((self._reach.values * np.cumprod(self._rates()))[:depth].sum())
            self._classes.learn(self._classes.places(view.slo_class)[drafted_B], accepted, expected)
        self._measured.learn(verified, accepted)
        if not self._stepwise:  # there the depth was ours to choose
            self._reach.learn(report.drafted[drafted_B], min(report.gamma, len(self._reach.values)))
        signal_BG = None if report.signals is None else report.signals.get("top_prob")
        self._silent = 0 if self._heard or signal_BG is not None else self._silent + 1
        self._heard = False
        if signal_BG is not None:
            chosen = sampled_rows(drafted_B, report.step)
            self._learn_confidence(
                signal_BG[chosen], report.drafted[chosen], report.verified[chosen], report.accepted[chosen]
            )

    def _learn_confidence(
        self, confidence_BG: FloatArray, drafted_B: IntArray, verified_B: IntArray, accepted_B: IntArray
    ) -> None:
        place_G = np.arange(confidence_BG.shape[1])
        present_BG = (place_G < drafted_B[:, None]) & ~np.isnan(confidence_BG)
        chances_BG = self._reliability.apply(confidence_BG) if self.calibrate else confidence_BG
        if not self._stepwise:
            self._running.add(np.where(present_BG, chances_BG, np.nan))
        else:  # `extend` has heard of all positions but the last, after which there is nothing to ask
            last_B = present_BG[:, -1]
            if last_B.any():
                self._running.add_at(len(place_G) - 1, float(chances_BG[last_B, -1].sum()), int(last_B.sum()))
        if self.calibrate:
            at_risk_BG = present_BG & (place_G < np.minimum(verified_B, accepted_B + 1)[:, None])
            stood_BG = np.broadcast_to(place_G < accepted_B[:, None], at_risk_BG.shape)
            self._reliability.learn(confidence_BG[at_risk_BG], stood_BG[at_risk_BG])


def _cost_model(cost: CostModel | str | Path | None) -> Any:
    """A name or a file as the model it stands for."""
    if not isinstance(cost, str | Path):
        return cost
    return published_cost(str(cost)) if str(cost) in PUBLISHED_COSTS else StepCost.load(cost)
