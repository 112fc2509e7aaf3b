"""Lossless means that sampled answers have the target's joint law: a test that can fail, and does for each offender.

Policies decide on the real engine, through the controller, at temperature 1. `SAMPLES` answers of four tokens are
counted and compared with their exact law by Pearson's chi-square. What calls itself lossless passes where p > `FAIR`;
each offender planted here must give p < `CAUGHT`.

**Power.** The size of a bias is its chi-square distance Σ (p' - p)² / p. The smallest one that is planted is
`SMALLEST`, known exactly by enumeration. The statistic of 72 cells is then noncentral: 2400 · .066 = 158 above its 71
degrees of freedom on average, with a standard deviation of √(2 · (71 + 2 · 158)) = 28. That is past what `FAIR` allows
(124) in more than 99.99 % of cases and past `CAUGHT` (143) in more than 99.9 %. So if a policy below had a bias as
large as any offender's, its test would fail; at half the distance it would in 89 %.

Answers depend on seeds alone: no test here passes today and fails tomorrow unless something was changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from adaptive.contract import AcceptanceKind, Policy
from adaptive.registry import ALLOW_LIST, list_policies
from policies import AdaSD, AdaSpec, EmaTiers, Fixed, FixedTree, Relaxed, Schedule
from tests.engine.offences import (
    COST,
    Deep,
    OnGraphs,
    Tight,
    Unguarded,
    best_of_all,
    by_neighbours_second,
    cutting,
    drop_unsure,
    first_best,
    judge_by_drafts_number,
    key_by_draft_position,
    key_by_place,
    key_without_seed,
    peek,
    unguard,
    while_first_row_is_sure,
    while_neighbour_is_sure,
)
from tests.engine.policy_law import (
    GAMMA,
    TWIN,
    Lengths,
    Served,
    effect_of,
    exact_law,
    judge,
    law_under,
    pair_law,
    pairs_of,
    power,
    serve,
    target_after,
)

SAMPLES = 2400
FAIR, CAUGHT = 1e-4, 1e-6
SMALLEST = 0.066
LAW, PAIR_LAW = exact_law(), pair_law()
STANDARD, BLOCK = AcceptanceKind.STANDARD, AcceptanceKind.BLOCK
each_rule = pytest.mark.parametrize("rule", [kind for kind in AcceptanceKind if kind.lossless])


def lawful(served: Served, *, least: float = 0.1) -> None:
    """The answers have the target's law, and both outcomes of judging were common."""
    assert least < served.stats.accepted / served.stats.verified < 0.97, (
        "both outcomes must be common to mean something"
    )
    assert judge(served.answers, LAW).p_value > FAIR


# --- how much is seen ----------------------------------------------------------------------------------------------


def test_a_bias_as_large_as_the_smallest_offence_is_seen() -> None:
    assert power(SMALLEST, LAW, SAMPLES, CAUGHT) > 0.999
    assert power(SMALLEST, PAIR_LAW, SAMPLES, CAUGHT) > 0.999
    assert power(SMALLEST, LAW, SAMPLES, FAIR) > 0.9999
    assert power(SMALLEST / 2, LAW, SAMPLES, FAIR) == pytest.approx(0.89, abs=0.01)
    assert power(0.0, LAW, SAMPLES, FAIR) == pytest.approx(FAIR)


@pytest.mark.parametrize(
    ("lengths", "peeking", "effect"),
    [
        (best_of_all, False, SMALLEST),
        (drop_unsure, True, 0.315),
        (first_best, False, 0.0),
        (drop_unsure, False, 0.0),
        (lambda confidence_BG: confidence_BG[:, 0] < 0, True, 0.0),
    ],
    ids=["best of all", "drop unlikely draws", "first best", "drop where unsure", "never verify"],
)
def test_biases_are_known_by_enumeration(lengths: Lengths, peeking: bool, effect: float) -> None:
    law = law_under(lengths, peeking=peeking)
    assert sum(law.values()) == pytest.approx(1)
    assert effect_of(law, LAW, SAMPLES) == pytest.approx(effect, abs=5e-4)


# --- what is lossless ----------------------------------------------------------------------------------------------

SWAYING = {"candidate_steps": [1, 2, 3], "ema_alpha": 0.5, "update_interval": 1, "rise_share": 0.6, "fall_share": 0.6}
TURNING = {"candidate_steps": [1, 3], "update_interval": 1, "warmup_batches": 0, "down_hysteresis": 0.8}
DEAR = replace(COST, plain=(0.1, 0.001, 0))
"""Plain decode is slow enough for drafting to pay in wide batches."""
LOSSLESS: dict[str, Policy] = {
    "fixed": Fixed(3),
    "schedule": Schedule([[1, 94, 3], [95, 100, 1], [101, 160, 2]]),
    "ema": EmaTiers({"1": SWAYING}, dwell=0, backoff=0),
    "ema-sglang": EmaTiers.sglang({"1": TURNING}),
    "adaspec": AdaSpec(cost=DEAR),
    "adaspec published": AdaSpec.published(DEAR),
    "adasd lossless": AdaSD(generation_only=True),
}


MOVING = ("schedule", "ema", "ema-sglang")


@each_rule
@pytest.mark.parametrize("name", LOSSLESS)
def test_policies_keep_the_law(name: str, rule: AcceptanceKind) -> None:
    served = serve(Relaxed(LOSSLESS[name].clone(), rule), SAMPLES)
    assert len(served.stats.gamma_histogram) > 1 or name not in MOVING, "a policy that never moves shows nothing"
    lawful(served)


def test_trees_keep_the_law() -> None:
    """Of candidates that were chosen without chance every lossless rule judges alike."""
    lawful(serve(FixedTree.branching(2, 1), SAMPLES))


def test_no_policy_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_LIST, "")
    tried = {name.partition(" ")[0] for name in LOSSLESS} | {"fixed-tree"}
    assert tried == {entry.name for entry in list_policies()}


# --- rows bound by one decision ------------------------------------------------------------------------------------

BOUND: dict[str, Callable[[], Deep]] = {
    "one budget": Tight,
    "one row stops all": lambda: Deep(while_first_row_is_sure),
    "a neighbour stops each": lambda: Deep(while_neighbour_is_sure),
}


@cache
def unbound(rule: AcceptanceKind) -> int:
    """Draft tokens that are verified where nothing ends drafting early."""
    return serve(Relaxed(Fixed(GAMMA), rule), SAMPLES).stats.verified


@each_rule
@pytest.mark.parametrize("make", BOUND.values(), ids=BOUND)
def test_rows_bound_by_one_decision_keep_the_law(make: Callable[[], Deep], rule: AcceptanceKind) -> None:
    served = serve(Relaxed(make(), rule), SAMPLES)
    assert served.stats.verified < 0.9 * unbound(rule), "the decision binds"
    lawful(served)


@pytest.mark.parametrize("make", BOUND.values(), ids=BOUND)
def test_rows_bound_by_one_decision_stay_independent(make: Callable[[], Deep]) -> None:
    """Two tokens of a row and two of its neighbour."""
    served = serve(make(), 2 * SAMPLES, together=True, draft=TWIN)
    assert judge(pairs_of(served.answers), PAIR_LAW).p_value > FAIR


def test_rows_that_decide_about_each_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row by itself has the right law; two that share a decision do not."""
    unguard(monkeypatch)
    served = serve(Deep(trim=by_neighbours_second), 2 * SAMPLES, together=True, draft=TWIN)
    assert judge(served.answers[::2], LAW).p_value > FAIR
    together = judge(pairs_of(served.answers), PAIR_LAW)
    assert together.p_value < CAUGHT
    assert together.effect > SMALLEST


# --- dropping drawn tokens -----------------------------------------------------------------------------------------


def caught(served: Served) -> None:
    verdict = judge(served.answers, LAW)
    assert verdict.p_value < CAUGHT
    assert verdict.effect > SMALLEST


def test_a_draft_length_chosen_by_what_came_after_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals of later tokens tell what was drawn before them."""
    unguard(monkeypatch)
    verdict = judge(serve(cutting(best_of_all), SAMPLES).answers, LAW)
    assert verdict.p_value < CAUGHT
    assert abs(verdict.effect - SMALLEST) < 3 * verdict.effect_error, "as enumerated"
    lawful(serve(cutting(first_best), SAMPLES))


def test_dropping_unlikely_draws_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Drop if q < .5" is harmless as long as q is the largest probability, which is all that an engine tells."""
    unguard(monkeypatch)
    honest = serve(cutting(drop_unsure), SAMPLES)
    assert honest.stats.verified < 0.95 * honest.stats.drafted
    lawful(honest)
    peek(monkeypatch)
    caught(serve(cutting(drop_unsure), SAMPLES))


def test_the_guard_lets_no_policy_cut_rows_that_sample() -> None:
    """What is caught above does no harm, and is counted."""
    served = serve(cutting(best_of_all), SAMPLES, mended={"trim"})
    assert served.stats.verified == served.stats.drafted
    lawful(served)


def test_the_guard_keeps_rows_independent() -> None:
    served = serve(Deep(trim=by_neighbours_second), 2 * SAMPLES, together=True, draft=TWIN, mended={"trim"})
    assert judge(pairs_of(served.answers), PAIR_LAW).p_value > FAIR


def test_published_trimming_is_caught_once_its_guard_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaSpec's own code: by q of what was drawn and on sampled rows too, as published."""
    unguard(monkeypatch)
    peek(monkeypatch)
    served = serve(Unguarded.published(COST), SAMPLES, rows=64)
    assert served.stats.verified < 0.9 * served.stats.drafted
    caught(served)


def test_a_token_that_is_kept_may_end_drafting_by_its_own_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its guard AdaSpec cuts no sampled row. It still stops after a token of low q, which is verified."""
    peek(monkeypatch)
    served = serve(OnGraphs.published(COST), SAMPLES, rows=64)
    assert served.stats.verified == served.stats.drafted
    lawful(served)


def test_greedy_rows_are_cut_beside_sampled_ones_and_neither_changes() -> None:
    served = serve(OnGraphs.published(COST), 2 * SAMPLES, rows=64, temperatures=(1.0, 0.0))
    assert served.stats.verified < served.stats.drafted - 100
    greedy: tuple[int, ...] = ()
    while len(greedy) < len(served.answers[0]):
        greedy = (*greedy, int(target_after(greedy).argmax()))
    assert set(served.answers[1::2]) == {greedy}
    assert judge(served.answers[::2], LAW).p_value > FAIR


# --- reused randomness ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reuse", "rule"),
    [
        (key_by_place, BLOCK),
        (key_by_draft_position, STANDARD),
        (key_by_draft_position, BLOCK),
        (judge_by_drafts_number, STANDARD),
        (judge_by_drafts_number, BLOCK),
        (key_without_seed, STANDARD),
    ],
    ids=lambda value: str(value) if isinstance(value, AcceptanceKind) else value.__name__,
)
def test_random_numbers_used_twice_are_caught(
    reuse: Callable[[pytest.MonkeyPatch], None], rule: AcceptanceKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    reuse(monkeypatch)
    caught(serve(Relaxed(Fixed(GAMMA), rule), SAMPLES))
