"""AdaSD: stop drafting where the drafter is unsure, accept where it and the target nearly agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np

from adaptive.contract import (
    STANDARD,
    Acceptance,
    AcceptanceKind,
    Capabilities,
    Decision,
    DrafterCaps,
    DraftStop,
    FloatArray,
    Needs,
    StepReport,
    StepView,
    floor_gamma,
)
from policies.js_means import JsMeans
from policies.js_posterior import JsPosterior
from policies.rows import RowMeans, Turns

NEVER = 1e9  # bits: no distribution has so much entropy, so drafting goes on


class AdaSD:
    """Entropy decides how far to draft, a distance between drafter and target decides what stands.

    *Generation* (lossless): drafting a row stops after the token whose entropy H(q), in bits, exceeds the mean entropy
    of the tokens that were rejected so far. *Verification* (lossy, `generation_only=True` leaves it out): a token
    stands by the Jensen-Shannon distance d = √D_JS(p‖q) in [0, 1], of the distributions at temperature 1, whatever the
    token is. Version "v1" accepts where d is below the midpoint of the mean distances of accepted and of rejected
    tokens; "v2" accepts with probability P(accepted | d), by kernel densities over both. Both means and densities are
    a request's own, with a share of all requests' for a start.

    What is asked of the engine is `Acceptance(AcceptanceKind.JS, params)` with `params["epsilon"]`, a number: a token
    stands only if p(token) is above it, always; and

    - v1: `params["threshold"]` `[B]`: accept iff d < threshold;
    - v2: `params["table"]` `[B, K]`: the probability of acceptance at K equally spaced distances from 0 to 1, to be
      interpolated linearly.

    The exact rule is used until `min_samples` distances, none of exactly 0 or 1, were seen of either outcome, and on
    rows that do not allow lossy acceptance. Where the lossy rule decides, its outcomes feed the very averages that
    it goes by: `exact_share` tells how much of the evidence is free of that.

    Refused, with the reason: drafters that are not language models of the target's vocabulary, for which the distance
    means little. `generation_only` takes any drafter that tells its entropy.

    Source: arXiv 2512.11280. `window` is its 20 tokens a step at most; `epsilon`, `min_samples` and what requests
    share are ours, since the paper does not say.

    >>> from adaptive.contract import Capabilities, DrafterCaps
    >>> lm = DrafterCaps("lm", 8, signals=frozenset({"entropy"}))
    >>> policy = AdaSD(generation_only=True)
    >>> policy.bind(Capabilities(tuple(range(9)), (1, 8), {"model": lm})).gammas[8]
    (0, 8)
    """

    def __init__(
        self,
        *,
        version: Literal["v1", "v2"] = "v2",
        generation_only: bool = False,
        window: int = 20,
        drafter: str | None = None,
        epsilon: float = 1e-4,
        min_samples: int = 8,
        prior_weight: float = 4.0,
    ) -> None:
        if version not in ("v1", "v2"):
            raise ValueError(f"version={version!r} is not valid: choose v1 or v2")
        for name, value, least in (
            ("window", window, 1),
            ("epsilon", epsilon, 0),
            ("min_samples", min_samples, 1),
            ("prior_weight", prior_weight, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value!r} is not valid: give {least} or above")
        self.version = version
        self.generation_only = generation_only
        self.window = window
        self.drafter = drafter
        self.epsilon = epsilon
        self.min_samples = min_samples
        self.prior_weight = prior_weight
        self._reset()

    def _reset(self) -> None:
        self._gamma = 0
        self._name: str | None = None
        self._entropies = RowMeans(self.prior_weight)
        self._means = JsMeans(self.prior_weight)
        self._posterior = JsPosterior()
        self._distances: JsMeans | JsPosterior = self._means if self.version == "v1" else self._posterior
        self._turns = Turns()
        self._outcomes = 0
        self._exact_outcomes = 0

    # --- what a metric may show -----------------------------------------------------------------------------------

    @property
    def exact_share(self) -> float:
        """Of the outcomes learnt from, the share that an exact rule decided; nan before the first."""
        return self._exact_outcomes / self._outcomes if self._outcomes else float("nan")

    def metrics(self) -> dict[str, float]:
        """For `stats().metrics`; empty where nothing is learnt from outcomes."""
        return {} if self.generation_only else {"exact_share": self.exact_share}

    @property
    def cold(self) -> bool:
        """Whether the exact rule still decides everywhere, for lack of evidence."""
        return min(self._distances.samples) < self.min_samples

    # --- the contract ---------------------------------------------------------------------------------------------

    def bind(self, caps: Capabilities) -> Needs:
        name = self._choose_drafter(caps)
        if not self.generation_only and AcceptanceKind.JS not in caps.acceptances:
            raise ValueError("AdaSD: this engine has no 'js' acceptance: use generation_only=True, which is lossless")
        self._reset()
        deepest = floor_gamma(caps.gammas, min(self.window, caps.drafters[name].max_gamma))
        self._gamma = deepest
        self._name = name if len(caps.drafters) > 1 else None
        kinds = {AcceptanceKind.STANDARD} | (set() if self.generation_only else {AcceptanceKind.JS})
        return Needs(
            {bucket: tuple(sorted({0, deepest})) for bucket in caps.batch_buckets},
            drafters=frozenset({name}) if self._name else frozenset(),
            signals=frozenset({"entropy"} if self.generation_only else {"entropy", "js"}),
            acceptances=frozenset(kinds),
            self_paced=True,
        )

    def decide(self, view: StepView) -> Decision:
        stop = None
        if self._gamma:
            known = self._entropies.count > 0
            stop = DraftStop("entropy", self._entropies.of(view.rows) if known else np.full(len(view.rows), NEVER))
        acceptance, reason = self._acceptance(view)
        return Decision(self._gamma, draft_stop=stop, acceptance=acceptance, drafter=self._name, reason=reason)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        signals = report.signals or {}
        entropy_BG, js_BG = signals.get("entropy"), signals.get("js")
        if entropy_BG is not None:
            self._learn_entropies(report, entropy_BG)
        if js_BG is not None and not self.generation_only:
            self._learn_distances(view, decision, report, js_BG)

    def forget(self, rows: Sequence[int]) -> None:
        self._entropies.forget(rows)
        self._distances.forget(rows)

    def clone(self) -> Self:
        return type(self)(
            version=self.version,
            generation_only=self.generation_only,
            window=self.window,
            drafter=self.drafter,
            epsilon=self.epsilon,
            min_samples=self.min_samples,
            prior_weight=self.prior_weight,
        )

    # --- inside ---------------------------------------------------------------------------------------------------

    def _choose_drafter(self, caps: Capabilities) -> str:
        """The drafter asked for, or the first that will do."""
        names = list(caps.drafters) if self.drafter is None else [self.drafter]
        reasons = []
        for name in names:
            if name not in caps.drafters:
                raise ValueError(f"drafter={name!r} is not offered by this engine: use {list(caps.drafters)}")
            reason = self._refusal(name, caps.drafters[name])
            if reason is None:
                return name
            reasons.append(reason)
        raise ValueError("AdaSD: " + ("; ".join(reasons) or "this engine has no drafter"))

    def _refusal(self, name: str, drafter: DrafterCaps) -> str | None:
        """Why this drafter will not do, or None."""
        if "entropy" not in drafter.signals:
            return f"drafter {name!r} ({drafter.kind}) does not tell its entropy, by which drafting is stopped"
        if self.generation_only:
            return None
        instead = "use generation_only=True, which is lossless"
        if drafter.kind != "lm":
            return (
                f"drafter {name!r} is of kind {drafter.kind!r}, not a language model of its own, so that its distance "
                f"to the target says little about the text: {instead}"
            )
        if not drafter.shared_vocab:
            return f"drafter {name!r} does not share the target's vocabulary, so the two can not be compared: {instead}"
        missing = {"js"} - drafter.signals
        return f"drafter {name!r} does not tell the distance 'js': {instead}" if missing else None

    def _acceptance(self, view: StepView) -> tuple[Acceptance, str]:
        if self.generation_only:
            return STANDARD, "entropy"
        if self.cold:
            return STANDARD, "cold"
        params: dict[str, float | FloatArray] = {"epsilon": self.epsilon}
        if self.version == "v1":
            params["threshold"] = self._means.thresholds(view.rows)
        else:
            params["table"] = self._posterior.tables(view.rows)
        return Acceptance(AcceptanceKind.JS, params), f"js_{self.version}"

    def _learn_entropies(self, report: StepReport, entropy_BG: FloatArray) -> None:
        """The first rejected token of each row alone: those after it were never judged."""
        rejected = (report.live & (report.accepted < report.verified)).nonzero()[0]
        if not len(rejected):
            return
        self._entropies.add(report.rows[rejected], entropy_BG[rejected, report.accepted[rejected]])

    def _learn_distances(self, view: StepView, decision: Decision, report: StepReport, js_BG: FloatArray) -> None:
        chosen = self._turns.rows(report.live & (report.verified > 0), report.step)
        if chosen is None or not len(chosen):
            return
        accepted_C = report.accepted[chosen]
        # All that stood and the one that fell, where one was judged to fall.
        ends_C = np.minimum(accepted_C + 1, report.verified[chosen])
        row_N, place_N = (np.arange(js_BG.shape[1]) < ends_C[:, None]).nonzero()
        distance_N = js_BG[chosen[row_N], place_N]
        if math.isnan(np.add.reduce(distance_N)):
            told_N = ~np.isnan(distance_N)
            row_N, place_N, distance_N = row_N[told_N], place_N[told_N], distance_N[told_N]
        self._distances.learn(report.rows[chosen], row_N, distance_N, place_N < accepted_C[row_N])
        self._outcomes += len(row_N)
        if decision.acceptance.lossless:
            self._exact_outcomes += len(row_N)
        elif view.allow_lossy is not None and len(view.allow_lossy) == len(report.rows):
            self._exact_outcomes += int(np.count_nonzero(~view.allow_lossy[chosen][row_N]))
