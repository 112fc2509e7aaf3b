"""Drafting token by token, and cutting drafts: numbers by hand, and the lossless law by exact enumeration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from adaptive.contract import CostModel
from policies.cost import StepCost
from policies.cost_tracker import CostTracker
from policies.drafting import Drafting


class Rates:
    """Seconds such that a batch of one makes `steps_per_s[n]` steps a second at n packed tokens; drafting is free."""

    def __init__(self, *steps_per_s: float) -> None:
        self._seconds = (float("inf"), *(1 / rate for rate in steps_per_s))

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        return 0.0

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        return self._seconds[verify_tokens]


def drafting(
    cost: CostModel, batch: int = 1, cap: int = 8, rate: float = 0.6, widths: tuple[int, ...] = ()
) -> Drafting:
    return Drafting(np.arange(batch), 0, cap, np.full(8, rate), CostTracker(cost), widths)


LINEAR = StepCost(draft=(0.1, 0, 0, 0), verify=(1.0, 0, 0, 0, 0), plain=(1.0, 0, 0))
"""A draft token costs a tenth of a step, verification is free: T(k) = 1 + k / 10."""


def test_goes_on_while_it_pays_and_keeps_the_token_that_made_it_drop() -> None:
    one = drafting(LINEAR)
    # G(0) = 1. Confidence .9: G(1) = 1.9 / 1.1 = 1.727; predicted G(2) = (1.9 + .54) / 1.2 = 2.03: on
    assert one.extend(np.array([0.9])).tolist() == [True]
    assert one.best == pytest.approx(1.9 / 1.1)
    # .8: survival .72, G(2) = 2.62 / 1.2 = 2.183; predicted G(3) = (2.62 + .432) / 1.3 = 2.348: on
    assert one.extend(np.array([0.8])).tolist() == [True]
    # .1: survival .072, G(3) = 2.692 / 1.3 = 2.071 < 2.183: stop, and the third token stays
    assert one.extend(np.array([0.1])).tolist() == [False]
    assert (one.packed, len(one.history_KB)) == (4, 3)


def test_does_not_draft_what_is_predicted_to_drop() -> None:
    one = drafting(LINEAR, rate=0.05)
    # G(1) = 1.9 / 1.1 = 1.727; predicted G(2) = (1.9 + .9 · .05) / 1.2 = 1.62
    assert one.extend(np.array([0.9])).tolist() == [False]


def test_the_cap_ends_it() -> None:
    one = drafting(LINEAR, cap=2, rate=0.9)
    assert one.extend(np.array([1.0])).tolist() == [True]
    assert one.extend(np.array([1.0])).tolist() == [False]


def test_rows_decide_together_and_those_that_do_not_draft_stay_out() -> None:
    many = drafting(LINEAR, batch=3, rate=1.0)
    # expected 3 + .9 + .5, T(1) = 1.1
    assert many.extend(np.array([0.9, np.nan, 0.5])).tolist() == [True, False, True]
    assert many.expected == pytest.approx(4.4)
    assert many.packed == 5
    assert many.extend(np.array([0.5, np.nan, np.nan])).tolist() == [True, False, False]
    assert many.expected == pytest.approx(4.4 + 0.45)


def test_nobody_drafted() -> None:
    assert drafting(LINEAR, batch=2).extend(np.full(2, np.nan)).tolist() == [False, False]


STEPS = StepCost(draft=(0.01, 0, 0, 0), verify=(0, 0, 1.0, 0, 0), plain=(1.0, 0, 0), widths=(4, 8, 12, 16, 24))
"""A verification takes as many seconds as its captured width, 24 where 17 would do."""


def test_the_likeliest_rows_fill_a_captured_width() -> None:
    many = drafting(STEPS, batch=6, rate=1.0, widths=STEPS.widths)
    many.best = 0.0  # whatever drafting nothing would give
    # 12 tokens so far: (6 + 4.25) / 12.01 = .853. One more for all makes 18, which runs at 24: 14.5 / 24.02 = .604.
    # Four of them make 16: (10.25 + .95 + .9 · 3) / 16.02 = .868
    more = many.extend(np.array([0.95, 0.3, 0.9, 0.3, 0.9, 0.9]))
    assert more.tolist() == [True, False, True, False, True, True]


def test_greedy_rows_are_cut_to_the_next_width_the_least_likely_tail_first() -> None:
    many = drafting(STEPS, batch=3, rate=0.9, widths=STEPS.widths)
    for confidence in ([0.9, 0.9, 0.9], [0.9, 0.2, 0.9]):
        many.extend(np.array(confidence))
    # 9 tokens run at width 12; one fewer fits 8. Survival of the tails: .81, .18, .81
    assert many.trimmed(np.ones(3, np.bool_)).tolist() == [2, 1, 2]
    # goodput before (3 + 2.7 + 1.8) / 12.02 = .624, after (7.5 - .18) / 8.02 = .913
    assert many.trimmed(np.array([True, False, True])).tolist() == [1, 2, 2]
    assert many.trimmed(np.zeros(3, np.bool_)).tolist() == [2, 2, 2]


# --- the lossless law, by enumeration over the two tokens of a draft ------------------------------------------------

P = (0.7, 0.3)
Lengths = Callable[[int, int], int]
"""How many of the drafted tokens (first, second) are verified."""


def first_token_law(q: tuple[float, float], lengths: Lengths) -> float:
    """P(first emitted token is A) under exact rejection sampling of the tokens that `lengths` lets verify."""
    law = 0.0
    for first, second in product((0, 1), repeat=2):
        weight = q[first] * q[second]
        if lengths(first, second) == 0:
            law += weight * P[0]
            continue
        accept = min(1.0, P[first] / q[first])
        residual = np.maximum(np.array(P) - q, 0)
        after = residual[0] / residual.sum() if residual.sum() else 0.0
        law += weight * (accept * (first == 0) + (1 - accept) * after)
    return law


HALF = (0.5, 0.5)
SKEWED = (0.9, 0.1)
SPS = Rates(1.0, 0.5, 0.45)
"""Steps per second at 1, 2 and 3 packed tokens."""


def survival(first: int) -> tuple[float, float]:
    """The second draft token is sure to stand after A and to fall after B."""
    return 0.8, 0.8 if first == 0 else 0.0


def test_a_global_best_over_lengths_is_biased() -> None:
    def best(first: int, second: int) -> int:
        one, two = survival(first)
        goodput = [1.0, (1 + one) * 0.5, (1 + one + two) * 0.45]  # 1, .9, 1.17 after A or .81 after B
        return int(np.argmax(goodput))

    assert first_token_law(HALF, best) == pytest.approx(0.85)


def test_dropping_unlikely_draws_is_biased() -> None:
    assert first_token_law(SKEWED, lambda first, second: int(SKEWED[first] >= 0.5)) == pytest.approx(0.77)


def test_step_level_drafting_is_not() -> None:
    """The same numbers under `Drafting`: the token that drops goodput is kept, whatever it is."""

    def drafted(first: int, second: int) -> int:
        step = drafting(SPS, rate=1.0, cap=2)
        one, two = survival(first)
        if not step.extend(np.array([one])).any():
            return 1
        step.extend(np.array([two / one]))
        return 2

    assert {drafted(first, 0) for first in (0, 1)} == {1}  # (1 + .8) · .5 = .9 < 1, so drafting stops after the first
    assert first_token_law(HALF, drafted) == pytest.approx(0.7)


@pytest.mark.parametrize(("greedy", "law"), [(False, 0.7), (True, 0.77)], ids=["as it is", "if sampled rows were cut"])
def test_cutting_drawn_tokens_is_kept_from_sampled_rows(greedy: bool, law: float) -> None:
    """Published trimming looks at q of the drawn token. Of two rows the other, sure one is never cut."""
    cost = StepCost(draft=(0, 0, 0, 0), verify=(0, 0, 1.0, 0, 0), plain=(1.0, 0, 0), widths=(3, 8))

    def verified(first: int, second: int) -> int:
        step = drafting(cost, batch=2, widths=cost.widths)
        step.extend(np.array([SKEWED[first], 0.5]))
        return int(step.trimmed(np.array([greedy, True]))[0])

    assert first_token_law(SKEWED, verified) == pytest.approx(law)
