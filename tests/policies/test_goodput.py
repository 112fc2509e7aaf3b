"""Choosing γ from tokens and seconds: the tables of theory, and limits on the time per token."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive.contract import FloatArray
from policies.goodput import Outlook, choose, strain

GAMMAS = tuple(range(41))


def theory(alpha: float, draft_cost: float) -> Outlook:
    """One row, every draft token standing with chance α; drafting one costs `draft_cost` of a target step."""
    gamma_G = np.array(GAMMAS)
    tokens_G = np.cumsum(alpha ** np.arange(len(GAMMAS)))
    return Outlook(GAMMAS, tokens_G, 1 + draft_cost * gamma_G)


@pytest.mark.parametrize(
    ("alpha", "tokens"),
    [
        (0.6, [1.6, 1.96, 2.176, 2.383, 2.458]),
        (0.8, [1.8, 2.44, 2.952, 3.689, 4.161]),
        (0.9, [1.9, 2.71, 3.439, 4.686, 5.695]),
    ],
)
def test_tokens_per_step(alpha: float, tokens: list[float]) -> None:
    """τ = (1 - α^(γ+1)) / (1 - α) at γ = 1, 2, 3, 5, 7."""
    outlook = theory(alpha, 0.1)
    np.testing.assert_allclose([outlook.tokens_G[gamma] for gamma in (1, 2, 3, 5, 7)], tokens, atol=5e-4)


@pytest.mark.parametrize(
    ("draft_cost", "gammas", "speedups"),
    [
        (0.01, [5, 7, 9, 14, 24], None),
        (0.05, [3, 4, 6, 8, 13], [1.63, 1.92, 2.35, 3.09, 4.67]),
        (0.1, [2, 3, 4, 6, 10], [1.46, 1.67, 1.98, 2.47, 3.43]),
        (0.2, [1, 2, 3, 4, 7], [1.25, 1.40, 1.58, 1.87, 2.37]),
    ],
)
def test_best_depth(draft_cost: float, gammas: list[int], speedups: list[float] | None) -> None:
    """γ* and S = τ / (γ·c + 1) for α = .5, .6, .7, .8, .9."""
    outlooks = [theory(alpha, draft_cost) for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)]
    chosen = [choose(outlook) for outlook in outlooks]
    assert [GAMMAS[one.place] for one in chosen] == gammas
    if speedups is not None:
        reached = [outlook.goodput[one.place] for outlook, one in zip(outlooks, chosen, strict=True)]
        np.testing.assert_allclose(reached, speedups, atol=6e-3)


def test_some_depth_pays_exactly_if_acceptance_is_above_the_draft_cost() -> None:
    assert choose(theory(0.19, 0.2)).reason == "no_gain"
    better = choose(theory(0.21, 0.2))
    assert (better.place, better.reason) == (1, "goodput")
    # and then at least (1 + α) / (1 + c)
    assert theory(0.21, 0.2).goodput[1] == pytest.approx(1.21 / 1.2)


def test_a_step_that_is_promised_for_nothing_is_best() -> None:
    assert choose(Outlook((0, 1), [1.0, 1.8], [0.0, 1.0])).place == 0


def two(strain_G: list[float] | None) -> Outlook:
    """Goodput 1, 1.5 and 1.25 tokens/s."""
    limits: FloatArray | None = None if strain_G is None else np.array(strain_G)
    return Outlook((0, 2, 4), np.array([1.0, 1.8, 2.5]), np.array([1.0, 1.2, 2.0]), limits)


def test_limits_forbid_and_the_best_of_the_rest_is_taken() -> None:
    assert choose(two(None))[::2] == (1, "goodput")
    assert choose(two([0.5, 0.6, 0.7]))[::2] == (1, "goodput")
    assert choose(two([0.9, 1.2, 1.5]))[::2] == (0, "slo")
    assert choose(two([1.3, 1.1, 0.9]))[::2] == (2, "slo")


def test_where_no_depth_keeps_the_limits_the_least_strain_runs_flagged() -> None:
    choice = choose(two([1.5, 1.2, 1.1]))
    assert choice[::2] == (2, "slo_infeasible")
    assert choice.allowed_G == (False, False, True)


def test_hysteresis_keeps_what_is_nearly_best_and_allowed() -> None:
    assert choose(two(None), current=4, hysteresis=0.1).place == 1  # 1.25 is 17 % worse
    assert choose(two(None), current=4, hysteresis=0.2).place == 2
    assert choose(two([0.5, 0.5, 1.1]), current=4, hysteresis=0.2).place == 1
    assert choose(two(None), current=3, hysteresis=0.9).place == 1


def test_strain_is_the_worst_rows() -> None:
    seconds, depth = np.array([0.04, 0.06]), np.array([0.0, 1.0])
    # row 0: .04 / .05 and .06 / (.05 · 2); row 1 does not draft: .04 / .08 and .06 / .08; row 2 has no limit
    limits, share = np.array([0.05, 0.08, np.nan]), np.array([1.0, 0.0, 1.0])
    strain_G = strain(seconds, depth, limits, share)
    assert strain_G is not None
    np.testing.assert_allclose(strain_G, [0.8, 0.75])
    assert strain(seconds, depth, np.array([np.nan]), np.array([1.0])) is None
