"""The step-time model: its form, its fit, its file, its correction; every number worked out where it stands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from adaptive.contract import Identity
from policies.cost import StepCost, interpolate, pad
from policies.cost_fit import StepSample, fit_cost, median_error, predicted_s
from policies.cost_online import FIRST_FIT, OnlineCost
from policies.cost_published import PUBLISHED_COSTS, published_cost
from policies.cost_tracker import CORRECTION_RATE, CostTracker, sample_of
from tests.policies.steps import report, view

TRUE = StepCost(
    draft=(1e-3, 1e-4, 1e-8, 5e-4),
    verify=(0.02, 1e-3, 2e-3, 1e-7, 1e-7),
    plain=(0.018, 2e-3, 2e-7),
    batches=(1, 2, 4, 8),
    widths=(1, 2, 4, 8, 16, 32, 64),
)
HERE = Identity("a machine", "a model")


def samples(
    cost: StepCost, noise: float = 0.0, *, split: bool = True, gammas: tuple[int, ...] = (0, 1, 2, 3, 5, 7)
) -> list[StepSample]:
    """Steps as `cost` has them, with multiplicative noise."""
    rng = np.random.default_rng(7)
    made = []
    for batch, gamma, context, _ in product((1, 2, 4, 8), gammas, (64, 256, 1024), range(3)):
        tokens, total = batch * (gamma + 1), batch * context
        factor = math.exp(noise * float(rng.standard_normal()))
        draft_s = cost.draft_s(batch, gamma, total) * factor
        verify_s = cost.verify_s(batch, tokens, total) * factor
        drafted = draft_s if gamma and split else float("nan")
        made.append(StepSample(batch, gamma, tokens, total, draft_s + verify_s, drafted))
    return made


def test_pieces_by_hand() -> None:
    # draft: 2 · (.001 + .0001 · 4 + 1e-8 · 1000) + .0005 = .00332, batch 3 padded to 4
    assert TRUE.draft_s(3, 2, 1000) == pytest.approx(0.00332)
    assert TRUE.draft_s(3, 0, 1000) == 0
    # verify: 9 tokens padded to 16: .02 + .001 · 4 + .002 · 16 + (1e-7 + 1e-7 · 16 / 4) · 1000 = .0565
    assert TRUE.verify_s(3, 9, 1000) == pytest.approx(0.0565)
    # plain decode is a point of its own: .018 + .002 · 4 + 2e-7 · 1000 = .0262
    assert TRUE.verify_s(3, 3, 1000) == pytest.approx(0.0262)


def test_a_step_function_over_captured_widths_and_smooth_above() -> None:
    seconds = [TRUE.verify_s(1, tokens, 0) for tokens in (5, 6, 8, 9, 64, 65, 66)]
    assert seconds[0] == seconds[1] == seconds[2] < seconds[3]
    assert seconds[6] - seconds[5] == pytest.approx(2e-3)
    assert (pad((1, 2, 4), 3), pad((1, 2, 4), 9), pad((), 5)) == (4, 9, 5)


def test_knots_correct_the_smooth_form_where_it_was_measured() -> None:
    cost = replace(TRUE, verify_knots=((4, math.log(1.1)), (16, math.log(1.3))))
    # half way between 4 and 16 on a logarithmic scale is 8
    assert cost.verify_s(1, 8, 0) / TRUE.verify_s(1, 8, 0) == pytest.approx(math.sqrt(1.1 * 1.3))
    assert cost.verify_s(1, 2, 0) / TRUE.verify_s(1, 2, 0) == pytest.approx(1.1)
    assert interpolate((), 5) == 0


@pytest.mark.parametrize("split", [True, False], ids=["pieces", "whole steps"])
def test_fit_finds_the_model_back(split: bool) -> None:
    cost = fit_cost(samples(TRUE, split=split), batches=TRUE.batches, widths=TRUE.widths)
    assert cost.error < 1e-3
    for batch, gamma, context in product((1, 3, 8), (0, 2, 4, 6), (100, 2000)):
        asked = StepSample(batch, gamma, batch * (gamma + 1), batch * context)
        assert predicted_s(cost, asked) == pytest.approx(predicted_s(TRUE, asked), rel=0.02)
    if split:
        assert cost.draft_s(4, 3, 1000) == pytest.approx(TRUE.draft_s(4, 3, 1000), rel=0.01)


def test_fit_shrugs_off_stalls() -> None:
    made = samples(TRUE, noise=0.02)
    stalled = [one._replace(step_s=8 * one.step_s) if place % 12 == 5 else one for place, one in enumerate(made)]
    cost = fit_cost(stalled, batches=TRUE.batches, widths=TRUE.widths)
    assert median_error(cost, samples(TRUE)) < 0.03


def test_fit_follows_a_kink_that_the_smooth_form_lacks() -> None:
    kinked = replace(TRUE, verify_knots=((2, 0.0), (8, 0.25), (64, -0.1)))
    cost = fit_cost(samples(kinked), batches=TRUE.batches, widths=TRUE.widths)
    assert median_error(cost, samples(kinked)) < 0.02
    assert median_error(replace(cost, verify_knots=()), samples(kinked)) > 0.02


def test_without_a_plain_step_it_is_a_verification_of_the_roots() -> None:
    cost = fit_cost(samples(TRUE, gammas=(1, 3, 7)), batches=TRUE.batches, widths=TRUE.widths)
    expected = 0.02 + 1e-3 * 4 + 2e-3 * 4 + (1e-7 + 1e-7) * 400
    assert cost.verify_s(4, 4, 400) == pytest.approx(expected, rel=0.02)


def test_fit_needs_steps_that_drafted() -> None:
    with pytest.raises(ValueError, match="none of them at gamma above 0"):
        fit_cost(samples(TRUE, gammas=(0,)))


# --- the file -----------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    cost = fit_cost(samples(TRUE, 0.01), batches=TRUE.batches, widths=TRUE.widths, identity=HERE, label="here")
    cost.save(tmp_path / "profile.json")
    assert StepCost.load(tmp_path / "profile.json", HERE) == cost
    TRUE.save(tmp_path / "plain.json")
    assert StepCost.load(tmp_path / "plain.json").draft == TRUE.draft


@pytest.mark.parametrize("other", [Identity("another", "a model"), Identity("a machine", "another")])
def test_a_profile_of_another_is_refused_naming_both(other: Identity, tmp_path: Path) -> None:
    replace(TRUE, identity=HERE).save(tmp_path / "profile.json")
    what = "machine" if other.machine == "another" else "model"
    with pytest.raises(ValueError, match=f"{what} 'a {what}' and this is 'another'.*adaptive profile"):
        StepCost.load(tmp_path / "profile.json", other)


def test_what_is_not_a_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, problem in (
        ("{", "not valid JSON"),
        ("[]", "not a cost profile"),
        ('{"format": 1}', "not a cost profile"),
        (json.dumps({"format": "adaptive cost profile 1", "draft": [1]}), "damaged"),
        (json.dumps({"format": "adaptive cost profile 1", "draft": [1], "verify": [], "plain": []}), "damaged.*draft"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=problem):
            StepCost.load(path)


# --- published models ---------------------------------------------------------------------------------------------


def test_published_coefficients() -> None:
    eagle = published_cost("llama-8b-h100-eagle")
    # 1.05 · (4.859e-5 · 32000 + 1.8438e-2 · 128 - 4.331e-2 · 32 + 6.9387) = 1.05 · 9.46772 = 9.9411 ms
    assert eagle.verify_s(32, 128, 32000) == pytest.approx(9.94110e-3, rel=1e-5)
    # 2.897e-6 · 32000 + .45218 · 3 + 5.528e-3 · 32 + .44711 = 2.07325 ms
    assert eagle.draft_s(32, 3, 32000) == pytest.approx(2.073250e-3, rel=1e-5)
    ngram = published_cost("llama-8b-h100-ngram")
    assert ngram.draft_s(32, 3, 32000) == pytest.approx(0.04 * 9.46772e-3, rel=1e-5)
    assert ngram.draft_s(32, 0, 32000) == 0


def test_published_models_are_labelled() -> None:
    assert all("not measured here" in cost.label for cost in PUBLISHED_COSTS.values())
    with pytest.raises(ValueError, match="llama-8b-h100-ngram"):
        published_cost("gpt")


# --- in use -------------------------------------------------------------------------------------------------------


def test_correction_is_slow_and_multiplicative() -> None:
    tracker = CostTracker(TRUE)
    sample = next(one for one in samples(TRUE) if one.gamma == 3)
    doubled = sample._replace(step_s=2 * sample.step_s, draft_s=2 * sample.draft_s)
    tracker.learn(doubled)
    # one step closes 2 % of the gap in the logarithm: 2^.02
    assert tracker.verify_factor == pytest.approx(2**CORRECTION_RATE)
    assert tracker.draft_factor == pytest.approx(2**CORRECTION_RATE)
    assert tracker.error == pytest.approx(1.0)
    for _ in range(300):
        tracker.learn(doubled)
    assert tracker.verify_factor == pytest.approx(2, rel=0.01)
    assert tracker.error < 0.02


def test_halves_are_corrected_apart_where_they_were_timed_apart() -> None:
    tracker = CostTracker(TRUE)
    sample = next(one for one in samples(TRUE) if one.gamma == 7)
    slower = sample._replace(draft_s=2 * sample.draft_s, step_s=sample.step_s + sample.draft_s)
    for _ in range(200):
        tracker.learn(slower)
    assert tracker.draft_factor > 1.9
    assert tracker.verify_factor == pytest.approx(1, abs=1e-6)


def test_a_stall_counts_as_one() -> None:
    tracker = CostTracker(TRUE)
    sample = samples(TRUE)[0]
    tracker.learn(sample._replace(step_s=1000 * sample.step_s))
    assert tracker.error == 1.0
    assert tracker.verify_factor == pytest.approx(math.exp(CORRECTION_RATE))


def test_curve_is_the_sum_of_both_halves() -> None:
    tracker = CostTracker(TRUE)
    tracker.draft_factor = 2.0
    seconds = tracker.curve(2, 1024, (0, 3), (2, 8))
    assert seconds[0] == pytest.approx(TRUE.verify_s(2, 2, 1024))
    assert seconds[1] == pytest.approx(2 * TRUE.draft_s(2, 3, 1024) + TRUE.verify_s(2, 8, 1024))


def test_a_curve_that_is_remembered_follows_the_factors() -> None:
    tracker = CostTracker(TRUE)
    for factor in (1.0, 1.1, 0.7):
        tracker.draft_factor, tracker.verify_factor = factor, 2 * factor
        seconds = tracker.curve(2, 1000, (0, 1, 3), (2, 4, 8))
        assert seconds == [tracker.step_s(2, gamma, tokens, 1000) for gamma, tokens in ((0, 2), (1, 4), (3, 8))]


def test_samples_leave_out_what_was_not_timed_or_shared_with_a_prompt() -> None:
    before, done = view(2), report([1, 0], 3)
    assert sample_of(before, done) is None
    timed = replace(done, step_s=0.1, draft_s=0.02)
    assert sample_of(before, replace(timed, verify_s=0.07)) == StepSample(2, 3, 8, 21, 0.1, 0.02, 0.07)
    assert sample_of(before, replace(timed, num_prefill_tokens=5)) is None


def test_online_fit_waits_for_variety_and_doubles_its_patience() -> None:
    online = OnlineCost(TRUE.batches)
    plain = StepSample(1, 0, 1, 100, TRUE.verify_s(1, 1, 100))
    assert not any(online.add(plain) for _ in range(2 * FIRST_FIT))
    fitted = [online.add(one) for one in samples(TRUE)]
    assert fitted.index(True) == 9, "the first step that drafted was all that lacked"
    assert sum(fitted) == 2  # at 74 and at 148 of 280 steps; the next at 296
    assert online.model is not None
    assert median_error(online.model, samples(TRUE)) < 0.2


def test_attention_reads_captured_contexts_where_they_are_known() -> None:
    cost = replace(TRUE, contexts=(64, 96, 128, 192))
    # batch 3 padded to 4; (270 + 9) / 3 = 93 tokens a row read at 96, (270 + 21) / 3 = 97 at 128
    assert cost.read(3, 9, 270) == 4 * 96
    assert cost.read(3, 21, 270) == 4 * 128
    assert cost.read(3, 9, 900) == 4 * 303  # longer than all of them
    assert TRUE.read(3, 9, 270) == 270
    # draft: 2 · (.001 + .0001 · 4 + 1e-8 · 384) + .0005 = .00330768
    assert cost.draft_s(3, 2, 270) == pytest.approx(0.00330768)
    # plain: (270 + 3) / 3 = 91: .018 + .002 · 4 + 2e-7 · 384
    assert cost.verify_s(3, 3, 270) == pytest.approx(0.0260768)


def test_fit_follows_the_steps_of_captured_contexts() -> None:
    heavy = replace(TRUE, verify=(0.02, 1e-3, 2e-3, 1e-5, 0), plain=(0.018, 2e-3, 1e-5), contexts=(64, 96, 256, 1024))
    made = samples(heavy)
    cost = fit_cost(made, batches=TRUE.batches, widths=TRUE.widths, contexts=heavy.contexts)
    asked = StepSample(4, 3, 16, 4 * 300)
    assert predicted_s(cost, asked) == pytest.approx(predicted_s(heavy, asked), rel=0.03)
    blind = fit_cost(made, batches=TRUE.batches, widths=TRUE.widths)
    assert predicted_s(blind, asked) != pytest.approx(predicted_s(heavy, asked), rel=0.2)


def test_online_fit_is_not_tried_without_variety_among_the_samples_kept() -> None:
    online = OnlineCost(TRUE.batches)
    drafted = StepSample(1, 1, 2, 100, 0.03, 0.001)
    plain = StepSample(1, 0, 1, 100, TRUE.verify_s(1, 1, 100))
    assert not online.add(drafted)
    assert not any(online.add(plain) for _ in range(20))
    assert online._varied()
    assert [online.add(plain) for _ in range(600)].index(True) == FIRST_FIT - 22
    assert not online._varied(), "the one that drafted has been dropped"
