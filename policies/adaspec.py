"""AdaSpec: draft as deep as expected tokens per second say, within the time per token that requests were promised."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Self

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
from policies.cost_source import cost_model
from policies.cost_tracker import CostTracker, grained, sample_of
from policies.drafting import Drafting
from policies.ema import EmaTiers
from policies.goodput import Choice, Outlook, choose, depths, limited, packed, strain
from policies.probes import Probes
from policies.rows import Turns

SILENT_AFTER = 8  # steps that drafted and told no confidence, after which none is expected
TRUSTED_AFTER = 16  # timed steps before the prediction error is held against a model
SHARE_RATE = 0.1
SUMS_KEPT = 128
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
        self.cost = cost_model(cost)
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
        self._turns = Turns()
        self._standing: tuple[tuple[int, int], Choice] | None = None
        self._silent, self._heard = 0, False
        self._drafting: Drafting | None = None
        # Heard of while drafting and not yet learnt: a position, its tokens' chances in all, and how many they were.
        self._sums: deque[tuple[int, float, int]] = deque(maxlen=SUMS_KEPT)
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
        self._online = OnlineCost(caps.batch_buckets, caps.context_widths) if cost is None else None
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
        context = int(np.add.reduce(view.context_lens))
        choice = self._choose(view, tracker, context)
        if choice.place:
            self._probes.drafts()
        elif self._probing(view, choice):
            choice = choice._replace(place=1, reason="probe")
        self._gamma = self._offered[choice.place]
        if self._stepwise and self._foretold and self._gamma:
            return self._start_drafting(view, tracker, choice, context)
        reason = "degraded" if choice.reason == "goodput" and not self._foretold else choice.reason
        return Decision(self._gamma, drafter=self.drafter, reason=reason)

    def extend(self, progress: DraftProgress) -> BoolArray:
        """Step-level speculation: whether to draft one more token, by the confidence in those drafted."""
        drafting = self._drafting
        confidence_B = progress.signals.get("top_prob")
        if drafting is None or confidence_B is None:
            return np.full(len(progress.rows), progress.position + 1 < (self._gamma or 0))
        self._heard = True
        more_B = drafting.extend(self._chances(confidence_B))
        self._sums.append((progress.position, drafting.newest_sum, drafting.newest_count))
        return more_B

    def trim(self, progress: DraftProgress) -> IntArray:
        """Request-level speculation: drafted lengths to verify `[B]`, once all are drafted."""
        drafting, confidence_BG = self._drafting, progress.signals.get("top_prob")
        if drafting is None or confidence_BG is None:
            return np.full(len(progress.rows), progress.position + 1)
        for position in range(len(drafting.history_KB), progress.position + 1):  # the last one was never asked about
            drafting.extend(self._chances(confidence_BG[:, position]))
        return drafting.trimmed(self._greedy_B)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        tracker = self._tracker
        if tracker is None or tracker.steps < TRUSTED_AFTER or tracker.error > self.error_bound / 2:
            self._ema.learn(view, decision, report)  # it may soon be in charge
        sample = sample_of(view, report)
        if sample is not None:
            if tracker is not None:
                tracker.learn(sample)
            if self._online is not None and self._online.add(sample) and self._online.model is not None:
                self._tracker, self._standing = CostTracker(self._online.model), None
        if report.gamma == 0:
            self._standing = None
            self._measured.idle()
            self._running.idle()
            return
        drafted_B = report.live & (report.drafted > 0)
        chosen = self._turns.rows(drafted_B, report.step)
        if chosen is None:
            return
        self._standing = None
        live, drafting = np.count_nonzero(report.live), np.count_nonzero(drafted_B)
        if live:
            self._share += SHARE_RATE * (drafting / live - self._share)
        if drafting:
            self._learn_acceptance(view, report, drafted_B, everyone=drafting == len(drafted_B))
            self._learn_signal(report, chosen)

    def forget(self, rows: Sequence[int]) -> None:
        self._ema.forget(rows)
        if rows:
            self._standing = None
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
        possible = self.look_ahead and len(self._offered) > 1 and choice.allowed_G[1]
        if not possible or self._drafting_rows(view) == 0 or not self._probes.due(view.step):
            return False
        self._measured.forget_to(PROBE_MEMORY)
        self._running.forget_to(PROBE_MEMORY)
        return True

    def _fall_back(self, view: StepView, reason: str) -> Decision:
        decision = self._ema.decide(view)
        self._gamma = decision.gamma
        return Decision(decision.gamma, drafter=self.drafter, reason=reason)

    def _choose(self, view: StepView, tracker: CostTracker, context: int) -> Choice:
        """The best γ; the choice before stands while the batch is alike and nothing was learnt of acceptance."""
        bounded = limited(view)
        alike = None if bounded or view.match_len is not None else (view.num_decode, grained(context))
        if alike is not None and self._standing is not None and self._standing[0] == alike:
            return self._standing[1]
        outlook = self._outlook(view, tracker, context, bounded=bounded)
        choice = choose(outlook, self._gamma, self.hysteresis)
        if choice.place and choice.reason == "goodput" and not self.look_ahead:
            goodput_G = outlook.goodput
            if goodput_G[1] <= goodput_G[0]:
                choice = choice._replace(place=0, reason="no_gain")
        self._standing = None if alike is None else (alike, choice)
        return choice

    def _outlook(self, view: StepView, tracker: CostTracker, context: int, *, bounded: bool) -> Outlook:
        """Expected tokens and seconds of each γ on offer."""
        batch = view.num_decode
        depth_G, drafted_G = depths(self._rates(), self._reach.values, self._offered)
        rows = self._drafting_rows(view)
        packed_G = packed(batch, rows, tuple(drafted_G))
        seconds_G = tracker.curve(batch, context, self._offered, packed_G)
        strain_G = self._strain(view, np.array(seconds_G), np.array(depth_G)) if bounded else None
        return Outlook(self._offered, [batch + rows * depth for depth in depth_G], seconds_G, strain_G)

    def _strain(self, view: StepView, seconds_G: FloatArray, depth_G: FloatArray) -> FloatArray | None:
        """`Outlook.strain_G`."""
        drafts_B = self._drafts(view) * (1.0 if view.slo_class is None else self._classes.of(view.slo_class))
        assert view.tpot_slo is not None
        return strain(seconds_G, depth_G, view.tpot_slo, drafts_B)

    def _drafts(self, view: StepView) -> FloatArray:
        """Chance of each row `[B]` to draft."""
        may_B = np.ones(view.num_decode) if view.may_speculate is None else view.may_speculate.astype(np.float64)
        # How long the match is is known before drafting, where the drafter copies text.
        return may_B * (self._share if view.match_len is None else view.match_len > 0)

    def _drafting_rows(self, view: StepView) -> float:
        """How many rows that makes."""
        if view.match_len is not None:
            return float(self._drafts(view).sum())
        may = view.num_decode if view.may_speculate is None else np.count_nonzero(view.may_speculate)
        return self._share * may

    def _start_drafting(self, view: StepView, tracker: CostTracker, choice: Choice, context: int) -> Decision:
        """Leave the depth to `extend`, up to the deepest γ that the limits allow."""
        cap = max(compress(self._offered, choice.allowed_G))
        self._drafting = Drafting(view.rows, context, cap, self._rates(), tracker, self._widths)
        batch = view.num_decode
        self._greedy_B = np.zeros(batch, np.bool_) if view.greedy is None else view.greedy
        return Decision(cap, drafter=self.drafter, reason=choice.reason)

    def _learn_acceptance(self, view: StepView, report: StepReport, drafted_B: BoolArray, *, everyone: bool) -> None:
        """From the rows that drafted."""
        drafted, verified, accepted = (
            counts if everyone else counts[drafted_B] for counts in (report.drafted, report.verified, report.accepted)
        )
        if limited(view) and view.slo_class is not None and len(view.slo_class) == len(drafted_B):
            depth = min(report.gamma, len(self._reach.values))
            expected = float((self._reach.values * np.cumprod(self._rates()))[:depth].sum())
            self._classes.learn(self._classes.places(view.slo_class)[drafted_B], accepted, expected)
        if not self._stepwise:  # there the depth was ours to choose
            self._reach.learn(drafted, min(report.gamma, len(self._reach.values)))
        if report.signals is None or "top_prob" not in report.signals or not self._confident:
            self._measured.learn(verified, accepted)  # what is foretold need not be measured

    def _learn_signal(self, report: StepReport, chosen: IntArray) -> None:
        """Confidences told while drafting or afterwards, of the chosen rows."""
        signal_BG = None if report.signals is None else report.signals.get("top_prob")
        self._silent = 0 if self._heard or signal_BG is not None else self._silent + 1
        self._heard = False
        heard = len(self._sums)
        for position, total, count in self._sums:
            self._running.add_at(position, total, count)
        self._sums.clear()
        if signal_BG is not None:
            self._learn_confidence(signal_BG[chosen], report.verified[chosen], report.accepted[chosen], heard)

    def _learn_confidence(
        self, confidence_BG: FloatArray, verified_B: IntArray, accepted_B: IntArray, heard: int
    ) -> None:
        """From rows of one step: confidences, nan where nothing was drafted. `extend` has `heard` of the first ones."""
        if not self._stepwise:
            self._running.add(self._chances(confidence_BG))
        else:
            for position in range(heard, confidence_BG.shape[1]):  # the deepest, after which there was nothing to ask
                new_B = self._chances(confidence_BG[:, position])
                new_B = new_B[~np.isnan(new_B)]
                if len(new_B):
                    self._running.add_at(position, float(np.add.reduce(new_B)), len(new_B))
        if self.calibrate:
            place_G, accepted_B1 = np.arange(confidence_BG.shape[1]), accepted_B[:, None]
            at_risk_BG = (place_G < np.minimum(verified_B[:, None], accepted_B1 + 1)) & ~np.isnan(confidence_BG)
            stood_BG = place_G < accepted_B1
            self._reliability.learn(confidence_BG[at_risk_BG], stood_BG[at_risk_BG])

    def _chances(self, confidences: FloatArray) -> FloatArray:
        """What these confidences are worth, same shape."""
        return self._reliability.apply(confidences) if self.calibrate else confidences
