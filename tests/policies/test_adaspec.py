"""`AdaSpec` as a whole: where γ comes from with and without confidence, limits, cost models that lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.check import check_policy
from adaptive.check.traces import BARE, SMALL, WIDE
from adaptive.contract import Capabilities, Decision, DrafterCaps, DraftProgress, Identity, Policy, StepReport, StepView
from policies import AdaSpec, Fixed
from policies.cost import StepCost
from tests.policies.steps import report, view

CHEAP = StepCost(draft=(0.05, 0, 0, 0), verify=(0.9, 0, 0.1, 0, 0), plain=(1.0, 0, 0))
"""A draft token costs 5 % of a step, a verified one 10 %."""
COUNTING = Capabilities(tuple(range(9)), (1, 2, 4, 8), {"ngram": DrafterCaps("ngram", 8)}, cost=CHEAP)
TELLING = replace(COUNTING, drafters={"eagle": DrafterCaps("eagle", 8, signals=frozenset({"top_prob", "entropy"}))})
STEPWISE = replace(TELLING, stepwise=True)


def bound(caps: Capabilities, policy: AdaSpec | None = None) -> AdaSpec:
    policy = policy or AdaSpec()
    policy.bind(caps)
    return policy


def live(policy: AdaSpec, chance: float, steps: int = 150, *, seconds: float = 1.0, batch: int = 1) -> Decision:
    """Steps in which each draft token stands with `chance`; times are CHEAP's times `seconds`. The last decision."""
    rng = np.random.default_rng(3)
    decision = Decision(0)
    for step in range(steps):
        seen = view(batch, step)
        decision = policy.decide(seen)
        policy.learn(seen, decision, made(rng, decision.gamma, chance, seconds, batch, step))
    return decision


def made(rng: np.random.Generator, gamma: int, chance: float, seconds: float, batch: int, step: int = 0) -> StepReport:
    stood = np.minimum(rng.geometric(1 - chance, batch) - 1, gamma) if chance < 1 else np.full(batch, gamma)
    total = CHEAP.draft_s(batch, gamma, 0) + CHEAP.verify_s(batch, batch * (gamma + 1), 0)
    return replace(report(stood.tolist(), gamma, step=step), step_s=seconds * total)


@pytest.mark.parametrize(
    ("make", "caps"),
    [
        (AdaSpec, (SMALL, WIDE)),
        (AdaSpec.published, (SMALL,)),
        (lambda: AdaSpec(cost="llama-8b-h100-eagle", trim=True), (replace(WIDE, batch_buckets=(1, 4, 16)), BARE)),
    ],
    ids=["default", "published", "trimming"],
)
def test_it_keeps_the_contract(make: Callable[[], AdaSpec], caps: Sequence[Capabilities]) -> None:
    assert check_policy(make, caps)


def test_without_confidence_it_measures_and_says_degraded() -> None:
    policy = bound(COUNTING)
    assert policy.degraded is not None
    assert "measured" in policy.degraded
    decision = live(policy, 0.9)
    assert (decision.reason, policy.prediction_error < 0.01) == ("degraded", True)
    # α = .9, T(γ) = 1 + .15 γ: (1 - .9^(γ+1)) / .1 / T is flat at its top:
    # 5: 4.686 / 1.75 = 2.678, 6: 5.217 / 1.9 = 2.746, 7: 5.695 / 2.05 = 2.778, 8: 6.126 / 2.2 = 2.784
    assert decision.gamma in (5, 6, 7, 8)
    assert policy.survival[0] == pytest.approx(0.9, abs=0.05)


def test_no_speculation_when_it_does_not_pay_and_another_try_later() -> None:
    policy = bound(COUNTING)
    gammas = []
    for step in range(400):
        seen = view(1, step)
        decision = policy.decide(seen)
        gammas.append(decision.gamma)
        policy.learn(seen, decision, made(np.random.default_rng(step), decision.gamma, 0.05, 1.0, 1, step))
    assert policy.decide(view(1)).reason in ("no_gain", "degraded")
    assert np.mean(np.array(gammas[100:]) == 0) > 0.85
    assert any(gammas[200:]), "the estimate fades while nothing is drafted, so that it is tried again"


def test_the_running_mean_of_confidences_chooses_beforehand() -> None:
    policy = bound(TELLING)
    assert policy.degraded is None
    needs = policy.bind(TELLING)
    assert (needs.signals, needs.stepwise) == (frozenset({"top_prob"}), False)
    first = policy.decide(view(1))
    # start .6: τ / T = 1.6 / 1.15 = 1.391, 1.96 / 1.3 = 1.508, 2.176 / 1.45 = 1.501
    assert (first.gamma, first.reason) == (2, "goodput")
    for step in range(40):
        seen = view(1, step)
        decision = policy.decide(seen)
        sure = replace(
            report([decision.gamma], decision.gamma), signals={"top_prob": np.full((1, decision.gamma), 0.97)}
        )
        policy.learn(seen, decision, sure)
    assert policy.decide(view(1)).gamma == 8


def test_published_means_are_one_number_for_life() -> None:
    policy = bound(TELLING, AdaSpec.published())
    seen = view(1)
    decision = policy.decide(seen)
    policy.learn(seen, decision, replace(report([0], 2), signals={"top_prob": np.array([[0.9, 0.5]])}))
    # (.9 + .5) / 2, uncalibrated, whatever was accepted
    np.testing.assert_allclose(policy.survival, 0.7 ** np.arange(1, 9))


def test_step_by_step_the_confidence_of_each_token_decides() -> None:
    policy = bound(STEPWISE, AdaSpec.published())
    assert policy.bind(STEPWISE).stepwise
    seen = view(2)
    decision = policy.decide(seen)
    assert (decision.gamma, decision.reason) == (8, "goodput")

    def drafted(position: int, *confidence: float) -> list[bool]:
        more: list[bool] = policy.extend(
            DraftProgress(position, seen.rows, {"top_prob": np.array(confidence)})
        ).tolist()
        return more

    assert drafted(0, 0.9, 0.95) == [True, True]
    # T(2) = 1.1 + .9 + .1 · 6 - ... : survival .045 and .0475 no longer pay for .05 + .2
    assert drafted(1, 0.05, 0.05) == [False, False]


def test_missing_signals_fall_back_on_the_depth_planned() -> None:
    policy = bound(STEPWISE)
    seen = view(1)
    policy.decide(seen)
    more = [bool(policy.extend(DraftProgress(position, seen.rows, {}))[0]) for position in range(3)]
    assert more == [True, False, False]  # two were planned


def test_confidence_that_never_comes_is_not_waited_for() -> None:
    policy = bound(STEPWISE)
    assert policy.degraded is None
    decision = live(policy, 0.95)
    assert policy.degraded is not None
    assert decision.reason == "degraded"
    assert policy.survival[0] > 0.85


def test_trimming_is_offered_for_greedy_rows_alone() -> None:
    caps = replace(STEPWISE, ragged=True, packed_widths=(2, 4, 8, 16))
    policy = bound(caps, AdaSpec(trim=True, calibrate=False))
    assert policy.bind(caps).budget
    assert not bound(STEPWISE, AdaSpec(trim=True)).bind(STEPWISE).budget
    seen = replace(view(3), greedy=np.array([True, True, False]))
    policy.decide(seen)
    progress = DraftProgress(0, seen.rows, {"top_prob": np.array([0.9, 0.3, 0.3])})
    policy.extend(progress)
    lens = policy.trim(replace(progress, signals={"top_prob": progress.signals["top_prob"][:, None]}))
    assert lens[2] == 1
    assert lens.sum() <= 3


# --- limits on the time per token ----------------------------------------------------------------------------------


def limited(batch: int, *limits: float, classes: tuple[str | None, ...] | None = None) -> StepView:
    return replace(view(batch), tpot_slo=np.array(limits), slo_class=classes)


def test_a_limit_that_plain_decode_misses_is_met_by_drafting() -> None:
    policy = bound(COUNTING)
    live(policy, 0.9)
    assert policy.decide(limited(1, 0.5)).gamma > 0
    # T(0) = 1 s per token; at γ = 7 it is 2.05 / 5.7 = .36
    assert policy.decide(limited(1, 0.3)).reason == "slo_infeasible"


def test_a_limit_may_cost_goodput() -> None:
    """A row that may not draft waits for the others' verification."""
    policy = bound(replace(COUNTING, cost=StepCost((0.3, 0, 0, 0), (0.9, 0, 0.025, 0, 0), (1.0, 0, 0))))
    rng = np.random.default_rng(1)
    for step in range(60):
        seen = view(4, step)
        decision = policy.decide(seen)
        policy.learn(seen, decision, replace(made(rng, decision.gamma, 0.9, 1.0, 4), step_s=float("nan")))
    # T(2) = .6 + .9 + .25 = 1.75, T(3) = 2.125; goodput (4 + 3 · 1.71) / 1.75 = 5.22, (4 + 3 · 2.44) / 2.125 = 5.32
    free = policy.decide(replace(view(4), may_speculate=np.array([True, True, True, False])))
    assert free.gamma > 2
    held = policy.decide(
        replace(view(4), may_speculate=np.array([True, True, True, False]), tpot_slo=np.array([np.nan] * 3 + [1.95]))
    )
    assert held.gamma == 2
    assert held.reason == "slo"


def test_an_impossible_limit_runs_what_is_fastest_per_token_and_says_so() -> None:
    policy = bound(COUNTING)
    live(policy, 0.9)
    decision = policy.decide(limited(1, 0.01))
    assert decision.reason == "slo_infeasible"
    assert decision.gamma >= 6


class DearAtTwo:
    """A step that verifies two tokens takes three times as long as one with one token or three."""

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        return 0.0

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        return 3.0 if verify_tokens == 2 else 1.0


def test_an_impossible_limit_is_told_without_looking_ahead_too() -> None:
    policy = AdaSpec(cost=DearAtTwo(), look_ahead=False, max_gamma=2)
    policy.bind(COUNTING)
    decision = policy.decide(limited(1, 0.01))
    assert (decision.gamma, decision.reason) == (2, "slo_infeasible")
    assert policy.decide(view(1)).reason == "no_gain", "the first token alone does not pay"


def test_classes_are_predicted_by_their_own_acceptance() -> None:
    policy = bound(COUNTING)
    for step in range(80):
        seen = replace(limited(2, 5.0, 5.0, classes=("code", "chat")), step=step)
        decision = policy.decide(seen)
        accepted = [decision.gamma, 0]
        policy.learn(seen, decision, report(accepted, decision.gamma, step=step))
    gamma = policy.decide(limited(2, np.nan, np.nan)).gamma
    assert gamma > 0
    # step seconds T; chat rows emit about 1 token a step, code rows γ + 1
    seconds = CHEAP.draft_s(2, gamma, 0) + CHEAP.verify_s(2, 2 * (gamma + 1), 0)
    assert policy.decide(limited(2, 0.8 * seconds, np.nan, classes=("code", "chat"))).reason == "degraded"
    assert policy.decide(limited(2, np.nan, 0.8 * seconds, classes=("code", "chat"))).reason in (
        "slo",
        "slo_infeasible",
    )


# --- cost models ---------------------------------------------------------------------------------------------------


def test_without_a_cost_model_ema_runs_until_one_is_fitted() -> None:
    policy = bound(replace(COUNTING, cost=None))
    assert policy.decide(view(1)).reason == "ema_no_cost"
    decision = live(policy, 0.8, 100)
    assert decision.reason in ("degraded", "no_gain")
    assert policy.prediction_error < 0.1


def test_a_model_that_lies_is_left_for_ema_until_corrected() -> None:
    policy = bound(COUNTING)
    reasons = []
    rng = np.random.default_rng(0)
    for step in range(200):
        seen = view(1, step)
        decision = policy.decide(seen)
        reasons.append(decision.reason)
        policy.learn(seen, decision, made(rng, decision.gamma, 0.8, 4.0, 1, step))
    assert reasons[0] == "degraded"
    assert reasons[20] == "ema_cost_error"
    assert reasons[-1] == "degraded", "slow correction has brought the model back"


def test_a_profile_of_another_machine_is_refused_at_bind() -> None:
    elsewhere = replace(CHEAP, identity=Identity("there", "m"))
    with pytest.raises(ValueError, match=r"'there'.*'here'"):
        AdaSpec(cost=elsewhere).bind(replace(COUNTING, identity=Identity("here", "m")))
    AdaSpec(cost=elsewhere).bind(replace(COUNTING, identity=Identity("there", "m")))


def test_mistakes_name_the_value() -> None:
    with pytest.raises(ValueError, match="max_gamma=0"):
        AdaSpec(max_gamma=0)
    with pytest.raises(ValueError, match=r"drafter='medusa' is not offered.*eagle"):
        AdaSpec(drafter="medusa").bind(TELLING)


def test_match_length_tells_who_will_draft() -> None:
    policy = bound(COUNTING)
    live(policy, 0.9, batch=4)
    some = policy.decide(replace(view(4), match_len=np.array([3, 5, 2, 4])))
    none = policy.decide(replace(view(4), match_len=np.array([0, 0, 0, 0])))
    assert some.gamma > 0
    assert none.gamma == 0


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("chance", [0.05, 0.4, 0.8, 0.95])
def test_it_comes_close_to_the_best_constant_and_follows_a_switch(batch: int, chance: float) -> None:
    """Coins of one process for all; costs as measured on a CPU, a draft token at 5 % of a step."""
    cost = StepCost((0.0045, 2e-4, 0, 0), (0.074, 1e-3, 0.0033, 0, 0), (0.077, 3e-3, 0))

    def speed(policy: Policy, chances: list[float]) -> float:
        """Tokens per second."""
        policy.bind(replace(COUNTING, cost=cost))
        rng, tokens, seconds = np.random.default_rng(0), 0, 0.0
        for step, now in enumerate(chances):
            coins = rng.random((batch, 8))
            seen = view(batch, step)
            decision = policy.decide(seen)
            gamma = decision.gamma
            stood = np.cumprod(coins[:, :gamma] < now, axis=1).sum(axis=1)
            took = cost.draft_s(batch, gamma, 0) + cost.verify_s(batch, batch * (gamma + 1), 0)
            policy.learn(seen, decision, replace(report(stood.tolist(), gamma, step=step), step_s=took))
            tokens, seconds = tokens + int(stood.sum()) + batch, seconds + took
        return tokens / seconds

    def against_best(chances: list[float]) -> float:
        return speed(AdaSpec(), chances) / max(speed(Fixed(gamma), chances) for gamma in (0, 1, 2, 3, 5, 7, 8))

    assert against_best([chance] * 400) > 0.96
    assert against_best([0.9 if step // 100 % 2 else 0.2 for step in range(400)]) > 1.0


def test_a_choice_stands_until_something_was_learnt_or_the_batch_changed() -> None:
    policy = bound(replace(COUNTING, cost=StepCost((0.05, 0, 0, 0), (0.9, 0, 1e-4, 0, 0), (1.0, 0, 0))))
    asked = 0

    def decided(seen: StepView) -> Decision:
        nonlocal asked
        assert policy._tracker is not None
        before, curve = policy._tracker.curve, 0

        def counted(*args: Any) -> Any:
            nonlocal curve
            curve += 1
            return before(*args)

        policy._tracker.curve = counted  # type: ignore[method-assign, assignment]
        decision = policy.decide(seen)
        policy._tracker.curve = before  # type: ignore[method-assign]
        asked = curve
        return decision

    first = decided(view(64, 1000))
    assert decided(view(64, 1001)) == first
    assert asked == 0
    decided(view(63, 1002))
    assert asked == 1, "another batch"
    decided(replace(view(63, 1002), context_lens=np.full(63, 900)))
    assert asked == 1, "longer contexts"
    decided(replace(view(63, 1003), tpot_slo=np.full(63, 0.5)))
    assert asked == 1, "limits may have moved"
    seen = view(63, 1004)
    decision = decided(seen)
    policy.learn(seen, decision, made(np.random.default_rng(0), decision.gamma, 0.9, 1.0, 63, 1004))
    decided(view(63, 1005))
    assert asked == 1, "acceptance was learnt"
