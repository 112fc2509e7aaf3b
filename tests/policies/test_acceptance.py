"""Estimators of what will stand; every number worked out in a comment."""

from __future__ import annotations

import numpy as np
import pytest

from policies.acceptance import (
    START,
    MeasuredSurvival,
    PositionRates,
    Reach,
    Reliability,
    RunningConfidence,
    longer_than,
)


def test_positions_lean_on_the_one_before() -> None:
    rates = PositionRates(3, prior=0.6, strength=4.0)
    assert rates.values.tolist() == [0.6, 0.6, 0.6]
    rates.add(np.array([6.0, 2.0]), np.array([3.0, 2.0]))
    # (3 + 4 · .6) / 10 = .54; (2 + 4 · .54) / 6 = .69333; nothing seen: the same
    np.testing.assert_allclose(rates.values, [0.54, 0.693333, 0.693333], rtol=1e-5)


def test_evidence_fades_by_observations_but_not_in_one_step() -> None:
    rates = PositionRates(1, prior=0.5, strength=0.0, window=100.0)
    rates.add(np.array([10.0]), np.array([10.0]))
    rates.add(np.array([10.0]), np.array([0.0]))
    # the first ten count 1 - 10 / 100 = .9: 9 / 19
    assert rates.values[0] == pytest.approx(9 / 19)
    rates.add(np.array([1000.0]), np.array([0.0]))
    # however many there are, an eighth fades at most: 9 · 7 / 8 of 19 · 7 / 8 + 1000
    assert rates.values[0] == pytest.approx(9 * 0.875 / (19 * 0.875 + 1000))


def test_past_the_first_rejection_and_past_verification_nothing_is_known() -> None:
    measured = MeasuredSurvival(3, prior=0.5, strength=0.0, window=None)
    # row 1: three verified, two stood: at risk 1, 1, 1. row 2: none stood: 1, 0, 0. row 3: one verified: 1, 0, 0
    measured.learn(np.array([3, 3, 1]), np.array([2, 0, 1]))
    np.testing.assert_allclose(measured.rates, [2 / 3, 1, 0])
    np.testing.assert_allclose(measured.survival, [2 / 3, 2 / 3, 0])


def test_measured_rates_converge_to_the_process() -> None:
    rng = np.random.default_rng(5)
    truth = np.array([0.8, 0.6, 0.4])
    measured = MeasuredSurvival(3, window=None)
    for _ in range(400):
        stood = np.cumprod(rng.random((8, 3)) < truth, axis=1).sum(axis=1)
        measured.learn(np.full(8, 3), stood)
    # 3200 · .8 · .6 = 1536 at risk at the last position: standard error .0125
    np.testing.assert_allclose(measured.rates, truth, atol=0.05)


def test_idle_steps_return_to_the_prior() -> None:
    measured = MeasuredSurvival(2)
    measured.learn(np.full(50, 2), np.zeros(50, np.int64))
    low = measured.rates[0]
    assert low == pytest.approx(2 * START / 52)
    for _ in range(1200):
        measured.idle()
    assert measured.rates[0] == pytest.approx(START, abs=0.01)


def test_running_confidence_is_the_authors_lifetime_mean() -> None:
    running = RunningConfidence(3, pooled=True, window=None)
    assert running.rates.tolist() == [0.6, 0.6, 0.6]
    running.add_at(0, 0.9 + 0.5, 2)
    running.add_at(1, 0.4, 1)
    # total_confidence / total_count = 1.8 / 3
    np.testing.assert_allclose(running.rates, 0.6)
    running.add_at(2, 1.0, 1)
    running.add_at(3, 1.0, 1)  # deeper than is known of
    np.testing.assert_allclose(running.rates, 2.8 / 4)
    np.testing.assert_allclose(running.survival, 0.7 ** np.arange(1, 4))
    running.idle()
    np.testing.assert_allclose(running.rates, 0.7)


def test_running_confidence_by_position_forgets() -> None:
    running = RunningConfidence(2, window=50.0)
    for _ in range(200):
        running.add(np.array([[0.9, 0.3]]))
    # about 50 observations stand against a made-up one at .6, and at that rate
    np.testing.assert_allclose(running.rates, [(0.9 * 50 + 0.6) / 51, (0.3 * 50 + 0.9) / 51], atol=0.02)
    for _ in range(1200):
        running.idle()
    np.testing.assert_allclose(running.rates, 0.6, atol=0.01)


def test_reliability_learns_that_confidence_is_too_high() -> None:
    rng = np.random.default_rng(2)
    table = Reliability()
    np.testing.assert_allclose(table.apply(np.array([0.21, 0.5])), [0.21, 0.5])
    for _ in range(200):
        confidence = rng.random(64)
        table.learn(confidence, rng.random(64) < confidence**2)
    asked = np.array([0.3, 0.6, 0.9])
    np.testing.assert_allclose(table.apply(asked), asked**2, atol=0.06)
    assert np.isnan(table.apply(np.array([np.nan]))).all()


def test_a_drafter_too_sure_everywhere_is_found_out_from_a_few_tokens() -> None:
    table = Reliability(scale_strength=10.0)
    table.learn(np.full(48, 0.5), np.arange(48) < 12)
    # 12 of 24 expected stood: (12 + 10) / (24 + 10) of what was never seen, too
    np.testing.assert_allclose(table.apply(np.array([13.5 / 16])), 13.5 / 16 * 22 / 34)
    table.learn(np.full(4000, 0.5), np.ones(4000, np.bool_))
    assert table.apply(np.array([1.0])) == [1.0]  # a chance, whatever the ratio


def test_reach_is_learnt_only_up_to_the_depth_asked_for() -> None:
    reach = Reach(3, window=1e9)
    reach.learn(np.array([1, 1, 1]), 1)
    assert reach.values.tolist() == [1.0, 1.0, 1.0]
    reach.learn(np.array([3, 1, 1]), 3)
    # one made-up row that got everywhere: (1 + 1) / (1 + 3)
    np.testing.assert_allclose(reach.values, [1.0, 0.5, 0.5])


def test_longer_than() -> None:
    assert longer_than(np.array([0, 2, 5]), 3).tolist() == [2, 2, 1]
    assert longer_than(np.array([], np.int64), 2).tolist() == [0, 0]


# --- counted in one pass, they are what a loop over rows counts -----------------------------------------------------


def test_measured_rates_are_those_of_a_loop_over_rows() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        positions = int(rng.integers(1, 6))
        verified = rng.integers(0, 9, 20)  # deeper than what is kept, too
        accepted = np.minimum(rng.integers(0, 9, 20), verified)
        measured = MeasuredSurvival(positions, prior=0.5, strength=1.0, window=None)
        measured.learn(verified, accepted)
        rate = 0.5
        for position in range(positions):
            at_risk = [(v, a) for v, a in zip(verified, accepted, strict=True) if v > position and a >= position]
            stood = sum(a > position for _, a in at_risk)
            rate = (stood + rate) / (len(at_risk) + 1)
            assert measured.rates[position] == pytest.approx(rate)


def test_reach_is_that_of_a_loop_over_rows() -> None:
    rng = np.random.default_rng(9)
    reach = Reach(4, window=1e9)
    could, got = np.ones(4), np.ones(4)
    for gamma in (4, 2, 3, 4):
        drafted = np.minimum(rng.integers(0, 5, 12), gamma)
        reach.learn(drafted, gamma)
        for position in range(gamma):
            could[position] += 12
            got[position] += sum(length > position for length in drafted)
    np.testing.assert_allclose(reach.values, np.minimum.accumulate(got / could), rtol=1e-6)


def test_reliability_is_that_of_a_loop_over_tokens() -> None:
    rng = np.random.default_rng(10)
    confidence, stood = rng.random(300), rng.random(300) < 0.5
    confidence[:2] = 1.0, 0.0
    table = Reliability(bins=5, strength=2.0, window=1e9, scale_strength=10.0)
    table.learn(confidence, stood)
    centres = (np.arange(5) + 0.5) / 5
    ratio = (stood.sum() + 10) / (confidence.sum() + 10)
    for place, centre in enumerate(centres):
        inside = np.minimum((confidence * 5).astype(int), 4) == place
        share = (stood[inside].sum() + 2 * ratio * centre) / (inside.sum() + 2)
        assert table.apply(np.array([centre]))[0] == pytest.approx(share)


def test_confidences_of_shorter_drafts_are_counted_where_they_are() -> None:
    running = RunningConfidence(3, window=None)
    running.add(np.array([[0.9, 0.5, np.nan], [0.7, np.nan, np.nan]]))
    # (1.6 + .6) / 3 = .7333; (.5 + .7333) / 2 = .6167; nothing: the same
    np.testing.assert_allclose(running.rates, [0.733333, 0.616667, 0.616667], rtol=1e-5)
