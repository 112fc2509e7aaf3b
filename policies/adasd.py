"""AdaSD: stop drafting where the drafter is unsure, accept where it and the target nearly agree."""

from __future__ import annotations

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
from policies.js_posterior import JsPosterior
from policies.rows import RowMeans, sampled_rows

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
        self._accepted = RowMeans(self.prior_weight)
        self._rejected = RowMeans(self.prior_weight)
        self._posterior = JsPosterior()
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
        return min(self._posterior.samples) < self.min_samples

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
        threshold_B = self._entropies.of(view.rows)
        stop = DraftStop("entropy", np.where(np.isnan(threshold_B), NEVER, threshold_B)) if self._gamma else None
        acceptance, reason = self._acceptance(view)
        return Decision(self._gamma, draft_stop=stop, acceptance=acceptance, drafter=self._name, reason=reason)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        signals = report.signals or {}
        entropy_BG, js_BG = signals.get("entropy"), signals.get("js")
        rejected_B = report.live & (report.accepted < report.verified)
        if entropy_BG is not None and rejected_B.any():
            # the first rejected token alone: those after it were never judged
            entropy_B = entropy_BG[rejected_B, report.accepted[rejected_B]]
            known_B = ~np.isnan(entropy_B)
            rows_B = report.rows[rejected_B][known_B]
            self._entropies.add(rows_B, entropy_B[known_B], np.ones(len(rows_B)))
        if js_BG is not None and not self.generation_only:
            self._learn_distances(view, decision, report, js_BG)

    def forget(self, rows: Sequence[int]) -> None:
        for kept in (self._entropies, self._accepted, self._rejected, self._posterior):
            kept.forget(rows)

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
            params["threshold"] = (self._accepted.of(view.rows) + self._rejected.of(view.rows)) / 2
        else:
            params["table"] = self._posterior.tables(view.rows)
        return Acceptance(AcceptanceKind.JS, params), f"js_{self.version}"

    def _learn_distances(self, view: StepView, decision: Decision, report: StepReport, js_BG: FloatArray) -> None:
        chosen = sampled_rows(report.live & (report.verified > 0), report.step)
        if not len(chosen):
            return
        js_CG, rows_C = js_BG[chosen], report.rows[chosen]
        accepted_C1, verified_C1 = report.accepted[chosen, None], report.verified[chosen, None]
        place_G, known_CG = np.arange(js_BG.shape[1]), ~np.isnan(js_CG)
        stood_CG = (place_G < accepted_C1) & known_CG
        fell_CG = (place_G == accepted_C1) & (place_G < verified_C1) & known_CG
        for means, which_CG in ((self._accepted, stood_CG), (self._rejected, fell_CG)):
            means.add(rows_C, np.where(which_CG, js_CG, 0.0).sum(axis=1), which_CG.sum(axis=1, dtype=np.float64))
        judged_CG = stood_CG | fell_CG
        row_N, place_N = np.nonzero(judged_CG)
        self._posterior.learn(rows_C, row_N, js_CG[row_N, place_N], stood_CG[row_N, place_N])
        self._outcomes += len(row_N)
        if decision.acceptance.lossless:
            self._exact_outcomes += len(row_N)
        elif view.allow_lossy is not None and len(view.allow_lossy) == len(report.rows):
            self._exact_outcomes += int(judged_CG[~view.allow_lossy[chosen]].sum())
