"""AdaSpec and AdaSD as published, formula by formula, and the theory they rest on: numbers worked out in comments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptive.contract import Capabilities, DrafterCaps, DraftProgress
from policies import AdaSpec
from policies.cost import StepCost
from policies.cost_published import published_cost
from policies.cost_tracker import CostTracker
from policies.drafting import Drafting
from policies.goodput import Outlook, choose, strain
from policies.js_posterior import JsPosterior
from tests.policies.steps import report, view

TELLING = Capabilities(
    tuple(range(9)), (1, 2, 4, 8), {"model": DrafterCaps("lm", 8, signals=frozenset({"top_prob"}))}, stepwise=True
)
PER_TOKEN = StepCost(draft=(0.05, 0, 0, 0), verify=(0.9, 0, 0.1, 0, 0), plain=(1.0, 0, 0))
"""A draft token costs .05 s, a verified one .1: T(k) = .05 k + .9 + .1 · B (k + 1), and T(0) = 1."""


def published(cost: StepCost, caps: Capabilities = TELLING) -> AdaSpec:
    policy = AdaSpec.published(cost)
    policy.bind(caps)
    return policy


# --- AdaSpec -------------------------------------------------------------------------------------------------------


def test_nothing_is_drafted_unless_the_first_token_pays() -> None:
    # d = .6. Batch 1: G(0) = 1, G(1) = 1.6 / 1.15 = 1.391. Batch 8: G(0) = 8, G(1) = 8 · 1.6 / 2.55 = 5.02
    assert published(PER_TOKEN).decide(view(1)).gamma > 0
    still = published(PER_TOKEN).decide(view(8))
    assert (still.gamma, still.reason) == (0, "no_gain")


def test_the_authors_do_not_look_past_the_first_token() -> None:
    # T(k) = 1.7 for all k > 0: G(0) = 1, G(1) = 1.6 / 1.7 = .941, G(2) = 1.96 / 1.7 = 1.153, G(8) = 2.475 / 1.7
    flat = StepCost(draft=(0, 0, 0, 0.7), verify=(1.0, 0, 0, 0, 0), plain=(1.0, 0, 0))
    assert published(flat).decide(view(1)).gamma == 0
    ours = AdaSpec(cost=flat)
    ours.bind(TELLING)
    assert (ours.decide(view(1)).gamma, ours.decide(view(1)).reason) == (8, "goodput")


def test_drafting_by_real_confidence_updates_the_running_mean() -> None:
    policy = published(PER_TOKEN)
    seen = view(2)
    decision = policy.decide(seen)
    # G(0) = 2; batch 2: T(1) = .05 + .9 + .4 = 1.35, T(2) = 1.6, T(3) = 1.85
    # first tokens .9 and .8: G(1) = 3.7 / 1.35 = 2.741; d = 1.7 / 2 = .85 afterwards, but the prediction uses .6:
    # (3.7 + 1.7 · .6) / 1.6 = 2.95: on
    more = policy.extend(DraftProgress(0, seen.rows, {"top_prob": np.array([0.9, 0.8])}))
    assert more.all()
    # then .9 and .5: survival .81 and .4, G(2) = 4.91 / 1.6 = 3.069; predicted (4.91 + 1.21 · .6) / 1.85 = 3.046: stop
    more = policy.extend(DraftProgress(1, seen.rows, {"top_prob": np.array([0.9, 0.5])}))
    assert not more.any()
    policy.learn(seen, decision, report([2, 2], 2))
    # total 1.7 + 1.4 over 4 tokens
    np.testing.assert_allclose(policy.survival[0], 3.1 / 4)


def test_a_cut_that_costs_more_than_it_saves_is_left() -> None:
    # 2 rows, one token each: 4 packed tokens at 1 s, 3 at .9 s. Cutting the less likely one, of survival .9:
    # before (2 + .95 + .9) / 1 = 3.85, after 2.95 / .9 = 3.28
    cost = StepCost(draft=(0, 0, 0, 0), verify=(0.6, 0, 0.1, 0, 0), plain=(0.1, 0, 0))
    one = Drafting(np.arange(2), 0, 8, np.full(8, 0.6), CostTracker(cost), (2, 3, 4))
    one.extend(np.array([0.95, 0.9]))
    assert one.trimmed(np.ones(2, np.bool_)).tolist() == [1, 1]
    # of survival .2: before (2 + .95 + .2) / 1 = 3.15, after 2.95 / .9 = 3.28
    two = Drafting(np.arange(2), 0, 8, np.full(8, 0.6), CostTracker(cost), (2, 3, 4))
    two.extend(np.array([0.95, 0.2]))
    assert two.trimmed(np.ones(2, np.bool_)).tolist() == [1, 0]


def test_time_per_token_is_the_steps_over_its_tokens() -> None:
    # T(k) / (E / B): (.02, .03, .05) s over 1, 1.8, 2.2 tokens a row = .02, .01667, .02273; the limit is .018
    strain_G = strain(np.array([0.02, 0.03, 0.05]), np.array([0, 0.8, 1.2]), np.array([0.018]), np.array([1.0]))
    assert strain_G is not None
    np.testing.assert_allclose(strain_G, [1.111, 0.926, 1.263], atol=1e-3)
    outlook = Outlook((0, 1, 2), np.array([1, 1.8, 2.2]), np.array([0.02, 0.03, 0.05]), strain_G)
    assert choose(outlook)[::2] == (1, "goodput")
    # at .015 none is feasible: the least time per token runs, flagged
    assert choose(replace(outlook, strain_G=strain_G * 0.018 / 0.015))[::2] == (1, "slo_infeasible")


# --- AdaSD ---------------------------------------------------------------------------------------------------------


def test_posterior_by_hand() -> None:
    """Accepted at .25 and .5, rejected at .5 and .75: s = .176777 each, width = s · (3 · 2 / 4)^-.2 = .163007."""
    posterior = JsPosterior()
    stood = np.array([True, True, False, False])
    posterior.learn(np.array([0]), np.zeros(4, np.int64), np.array([0.25, 0.5, 0.5, 0.75]), stood)
    table = posterior.tables(np.array([1]))[0]
    # half way, at .5, both have one sample there and one at .25's distance: the prior, 2 of 4
    assert table[16] == pytest.approx(0.5)
    # at .375: accepted 2 · exp(-½ (.125 / .163)²) = 1.4905, rejected .7453 + exp(-½ (.375 / .163)²) = .8162
    assert table[12] == pytest.approx(1.4905 / (1.4905 + 0.8162), abs=0.01)
    # by symmetry at .625 the other way round
    assert table[20] == pytest.approx(0.8162 / (1.4905 + 0.8162), abs=0.01)


def test_outcomes_weigh_by_how_often_they_occurred() -> None:
    """Three samples at .5, their spread below the floor, two of them accepted: nothing but the prior 2 / 3 tells."""
    posterior = JsPosterior()
    posterior.learn(np.array([0]), np.zeros(3, np.int64), np.full(3, 0.5), np.array([True, True, False]))
    table = posterior.tables(np.array([1]))[0]
    # widths are .001 · 1.5^-.2 = .00092 and .001 · .75^-.2 = .00106, both narrower than the grid: beside .5 there is
    # nothing, and far from all that was seen the prior is left
    assert table[4] == pytest.approx(2 / 3)


# --- theory --------------------------------------------------------------------------------------------------------


def test_speed_up_in_a_batch() -> None:
    """S = τ T(B) / (γ t_d(B) + T(B (γ + 1))) with α = .8, where a token more for every row takes T from 1 to 1.2."""
    tau = 1 + 0.8 + 0.64
    # γ = 2, t_d = .05: 2.44 · 1 / (.1 + 1.2) = 1.877
    outlook = Outlook((0, 2), 8 * np.array([1, tau]), np.array([1.0, 2 * 0.05 + 1.2]))
    assert outlook.goodput[1] / outlook.goodput[0] == pytest.approx(1.877, abs=1e-3)


def test_the_handbooks_claim_needs_a_cheaper_drafter() -> None:
    # α = .6, γ = 5: τ = 2.383; c = .1 gives 2.383 / 1.5 = 1.59, and 2 takes c < (2.383 / 2 - 1) / 5 = .0383
    tau = (1 - 0.6**6) / 0.4
    for cost, expected in ((0.1, 1.59), (0.0383, 2.0)):
        outlook = Outlook((0, 5), np.array([1, tau]), np.array([1, 1 + 5 * cost]))
        assert outlook.goodput[1] == pytest.approx(expected, abs=2e-3)


def test_the_published_70b_pass_is_faster_where_it_speculates() -> None:
    cost = published_cost("llama-70b-h100-tp4-ngram")
    # 6.2437e-5 · 32000 = 1.997984, 6.4022e-2 · 128 = 8.194816, -3.9738e-2 · 32 = -1.271616, fixed 18.34535
    # together with -.11229: 27.154244 ms, and 5 % more is 28.511956
    assert cost.verify_s(32, 128, 32000) == pytest.approx(28.511956e-3, rel=1e-6)
    # plain: 6.4022e-2 · 32 = 2.048704, no -.11229: 21.120422 ms, and 5 % more is 22.176443
    assert cost.verify_s(32, 32, 32000) == pytest.approx(22.176443e-3, rel=1e-6)
    # n-gram drafting takes 4 % of the pass
    assert cost.draft_s(32, 3, 32000) == pytest.approx(0.04 * 27.154244e-3, rel=1e-6)
