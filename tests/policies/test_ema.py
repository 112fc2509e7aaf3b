"""What `EmaTiers` adds to SGLang's rule, and that each addition cures what it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adaptive.contract import Capabilities, Policy
from policies import EmaTiers
from policies.ema_ladder import DEFAULT_TIERS
from tests.policies.steps import CAPS, feed, report, switches, view

Accept = Callable[[int, int], int]
"""(γ, step) -> accepted tokens."""

PLAIN: dict[str, Any] = {"credit": False, "dwell": 0, "backoff": 0, "eager": False}
STEPS = 1000


def run(policy: EmaTiers, accept: Accept, steps: int = STEPS) -> list[int]:
    return [feed(policy, [accept(policy.gamma_at(1), step)], step) for step in range(steps)]


def tiers(steps: Sequence[int], **options: Any) -> dict[str, Any]:
    return {"1": {"candidate_steps": list(steps), "warmup_batches": 0, **options}}


def noisy(mean: float, spread: float, seed: int = 3) -> Accept:
    """Around `mean` whatever γ is, as far as γ allows."""
    draws = np.random.default_rng(seed).normal(mean, spread, STEPS)
    return lambda gamma, step: int(np.clip(round(draws[step]), 0, gamma))


def copies(gamma: int, step: int) -> int:
    return gamma


def useless(gamma: int, step: int) -> int:
    return 0


# --- upstream's oscillations --------------------------------------------------------------------------------------

PROBE_THRASH = tiers([0, 1], update_interval=1)
CEILING_FIGHT = tiers([1, 3, 7], ceiling_coeff=1.2, ema_alpha=0.2)
RUNG_FLIP = tiers([1, 3, 5, 7], update_interval=1)


@pytest.mark.parametrize(
    ("config", "accept", "start", "upstream", "ours"),
    [
        pytest.param(PROBE_THRASH, useless, 1, STEPS - 1, 20, id="0-1 probe thrash"),
        pytest.param(CEILING_FIGHT, lambda gamma, step: 4, 3, 190, 20, id="ceiling against climb"),
        pytest.param(RUNG_FLIP, noisy(2.3, 0.9), 3, 60, 25, id="noisy 3-5 flip"),
    ],
)
def test_upstream_flips_for_ever_and_ours_settles(
    config: dict[str, Any], accept: Accept, start: int, upstream: int, ours: int
) -> None:
    assert switches(run(EmaTiers.sglang(config, start), accept)) >= upstream
    assert switches(run(EmaTiers(config, start=start), accept)) <= ours


def test_thresholds_as_shares_of_the_rung_do_not_flip_at_all() -> None:
    shares = tiers([1, 3, 5, 7], update_interval=1, rise_share=0.5, fall_share=0.25)
    assert switches(run(EmaTiers(shares, start=3), noisy(2.3, 0.9))) == 1  # the first climb


def test_probe_thrash_flips_between_every_two_steps_upstream() -> None:
    assert run(EmaTiers.sglang(PROBE_THRASH, 1), useless, 6) == [1, 0, 1, 0, 1, 0]


def test_all_switched_off_is_upstream() -> None:
    for config, accept in ((PROBE_THRASH, useless), (RUNG_FLIP, noisy(2.3, 0.9))):
        assert run(EmaTiers(config, start=1, **PLAIN), accept) == run(EmaTiers.sglang(config, 1), accept)


# --- one by one ---------------------------------------------------------------------------------------------------


def test_dwell_keeps_switches_apart() -> None:
    def apart(dwell: int) -> int:
        gammas = run(EmaTiers(RUNG_FLIP, start=3, **{**PLAIN, "dwell": dwell}), noisy(2.3, 0.9))
        at = [step for step in range(1, STEPS) if gammas[step] != gammas[step - 1]]
        return min(b - a for a, b in pairwise(at))

    assert apart(0) < 8
    assert apart(8) >= 8


def test_backoff_doubles_the_wait_up_to_its_bound_and_a_lasting_climb_shortens_it() -> None:
    config = tiers([0, 1], update_interval=1, ema_alpha=0.5)
    policy = EmaTiers(config, start=0, **{**PLAIN, "trial": 4, "backoff": 32})
    gammas = run(policy, useless, 200)
    probes = [step for step in range(1, 200) if gammas[step] > gammas[step - 1]]
    assert np.diff(probes).tolist()[:5] == [9, 17, 33, 33, 33]
    run(policy, copies, 60)
    assert policy.gamma_at(1) == 1
    gammas = run(policy, useless, 60)
    probe = next(step for step in range(1, 60) if gammas[step] > gammas[step - 1])
    assert probe - gammas.index(0) == 16


def test_requests_that_leave_take_their_share_of_the_wait_along() -> None:
    def wait(leaving: int) -> int:
        policy = EmaTiers(PROBE_THRASH, start=0, **{**PLAIN, "trial": 4, "backoff": 64})
        for step in range(150):
            feed(policy, [0, 0], step)
        while policy.gamma_at(2) == 0:
            feed(policy, [0, 0])
        feed(policy, [0, 0])
        assert policy.gamma_at(2) == 0
        policy.forget(list(range(leaving)))
        steps = 0
        while policy.gamma_at(2) == 0:
            feed(policy, [0, 0])
            steps += 1
        return steps

    assert wait(0) == 64
    assert 30 <= wait(1) <= 34
    assert wait(2) == 1


def test_results_count_only_for_the_gamma_that_made_them() -> None:
    late = report([0], 7)
    before = view(1)
    for credit, expected in ((True, 2.0), (False, 1.6)):
        policy = EmaTiers(tiers([1, 3, 7]), start=3, credit=credit)
        policy.learn(before, policy.decide(before), late)
        assert policy.averages()[1] == pytest.approx(expected)


def test_rows_that_ended_or_drafted_nothing_do_not_count() -> None:
    before = view(4)
    mixed = report([3, 0, 0, 1], 3, drafted=[3, 0, 3, 3], live=[True, True, False, True])
    policy = EmaTiers(tiers([1, 3, 7], ema_alpha=1.0, update_interval=9), start=3)
    policy.learn(before, policy.decide(before), mixed)
    assert policy.averages()[1] == 2.0
    policy.learn(before, policy.decide(before), report([0] * 4, 3, drafted=[0] * 4))
    assert policy.averages()[1] == 2.0


def test_eager_leaves_a_saturated_rung_by_two() -> None:
    def steps_to(gamma: int, eager: bool) -> int:
        gammas = run(EmaTiers(eager=eager), copies, 60)
        return gammas.index(gamma)

    assert steps_to(16, eager=True) <= 10
    assert steps_to(16, eager=True) < steps_to(16, eager=False)


# --- the defaults -------------------------------------------------------------------------------------------------


def test_default_tiers_reach_zero_everywhere_and_deeper_at_small_batches() -> None:
    needs = EmaTiers().bind(CAPS)
    assert all(0 in gammas for gammas in needs.gammas.values())
    assert [max(needs.gammas[bucket]) for bucket in (1, 8, 32, 64)] == [16, 16, 5, 3]
    assert all(0 in tier["candidate_steps"] for key, tier in DEFAULT_TIERS.items() if key.isdigit())
    assert 0 < EmaTiers().gamma_at(1) <= 3


def test_a_useless_drafter_costs_next_to_nothing() -> None:
    gammas = run(EmaTiers(), useless)
    assert sum(gammas) <= 0.065 * STEPS
    assert gammas[200:].count(0) >= 0.95 * len(gammas[200:])


def test_finds_copied_text_again_after_free_text() -> None:
    policy = EmaTiers()
    run(policy, useless, 300)
    policy.forget([0])
    assert 16 in run(policy, copies, 30)


def test_leaves_a_deep_gamma_within_a_few_steps_when_copying_ends() -> None:
    policy = EmaTiers()
    run(policy, copies, 60)
    gammas = run(policy, useless, 30)
    assert gammas[10] < 16
    assert gammas[-1] == 0


# --- binding ------------------------------------------------------------------------------------------------------


def test_gamma_that_is_not_offered_is_lowered() -> None:
    few = Capabilities(gammas=(0, 1, 4), batch_buckets=(1, 8, 64))
    policy = EmaTiers()
    assert policy.bind(few).gammas == {1: (0, 1, 4), 8: (0, 1, 4), 64: (0, 1, 4)}
    assert set(run(policy, copies, 60)) <= {0, 1, 4}
    assert policy.gamma_at(1) == 4


def test_an_engine_that_never_drafts() -> None:
    policy = EmaTiers()
    policy.bind(Capabilities(gammas=(0,), batch_buckets=(1,)))
    assert set(run(policy, useless, 50)) == {0}


def test_needs_cover_every_decision_and_binding_again_starts_afresh() -> None:
    policy = EmaTiers()
    needs = policy.bind(CAPS)
    rng = np.random.default_rng(0)
    for step in range(600):
        size = int(rng.integers(1, 65))
        gamma = policy.gamma_at(size)
        bucket = next(bucket for bucket in CAPS.batch_buckets if bucket >= size)
        assert gamma in needs.gammas[bucket]
        feed(policy, rng.integers(0, gamma + 1, size).tolist(), step)
    policy.bind(CAPS)
    assert policy.averages() == EmaTiers().averages()


def test_clone_has_the_parameters_and_none_of_the_state() -> None:
    policy = EmaTiers(RUNG_FLIP, start=3, credit=False, dwell=5, trial=7, backoff=9, eager=False)
    run(policy, copies, 40)
    twin = policy.clone()
    assert isinstance(twin, Policy)
    assert (twin.tiers, twin.start, twin.credit, twin.pacing) == (
        policy.tiers,
        policy.start,
        policy.credit,
        policy.pacing,
    )
    assert (policy.gamma_at(1), twin.gamma_at(1)) == (7, 3)


@pytest.mark.parametrize("option", [{"start": -1}, {"dwell": -1}, {"trial": 0}, {"backoff": -1}])
def test_bad_parameters_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        EmaTiers(**option)
