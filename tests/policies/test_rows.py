"""Whose turn it is to be learnt from, and numbers kept per row."""

from __future__ import annotations

import numpy as np
import pytest

from policies.js_means import JsMeans
from policies.rows import LONGEST_REST, ROWS_A_STEP, ROWS_A_TURN, RowMeans, Turns


def test_in_a_small_batch_everybody_is_learnt_from_at_each_step() -> None:
    turns = Turns()
    chosen = np.arange(2 * ROWS_A_STEP - 1) % 3 > 0
    for step in range(5):
        places = turns.rows(chosen, step)
        assert places is not None
        assert places.tolist() == np.flatnonzero(chosen).tolist()


@pytest.mark.parametrize("batch", [32, 48, 64, 256, 1000])
def test_of_a_crowd_about_as_many_rows_a_step_and_each_in_its_turn(batch: int) -> None:
    turns, steps = Turns(), 40 * LONGEST_REST
    counts = np.zeros(batch, np.int64)
    for step in range(steps):
        places = turns.rows(np.ones(batch, np.bool_), step)
        if places is not None:
            assert len(places) <= ROWS_A_TURN
            counts[places] += 1
    assert 0.24 * ROWS_A_STEP < counts.sum() / steps < ROWS_A_STEP + 1, "four from 64 rows every sixteenth step"
    assert counts.max() - counts.min() <= 1


def test_a_crowd_that_drafts_now_and_then_is_learnt_from_each_time() -> None:
    turns = Turns()
    assert all(turns.rows(np.ones(256, np.bool_), step) is not None for step in (0, 16, 48))


def test_rows_are_made_room_for_as_they_come() -> None:
    means = RowMeans(prior_weight=1.0)
    means.add(np.array([7]), np.array([3.0]))
    # over all 3; row 9 has heard nothing; row 7: (3 + 3) / 2
    np.testing.assert_allclose(means.of(np.array([9, 7])), [3.0, 3.0])
    means.add(np.array([9, 7]), np.array([1.0, 2.0]))
    # over all 6 / 3 = 2; row 7: (5 + 2) / 3, row 9: (1 + 2) / 2
    np.testing.assert_allclose(means.of(np.array([7, 9])), [7 / 3, 1.5])


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.3])
def test_means_that_are_kept_are_those_worked_out_anew(weight: float) -> None:
    rng, means, rows = np.random.default_rng(0), RowMeans(weight), np.arange(9)
    sums, counts, total = np.zeros(9), np.zeros(9), 0
    for step in range(200):
        some = rng.permutation(9)[: rng.integers(1, 9)]
        values = rng.random(len(some))
        if step % 3 == 0:
            means.add(some, values)
            sums[some] += values
            counts[some] += 1
            total += len(some)
        elif step % 5 == 0:
            means.forget(some.tolist())
            sums[some] = counts[some] = 0
        alone = np.divide(sums, counts, out=np.full(9, means.mean), where=counts > 0)
        expected = (sums + weight * means.mean) / (counts + weight) if weight else alone
        assert means.of(rows).tolist() == expected.tolist()
    assert means.count == total


def test_a_value_that_was_not_told_is_left_out() -> None:
    means = RowMeans(prior_weight=1.0)
    means.add(np.array([0, 1, 2]), np.array([1.0, np.nan, 4.0]))
    assert (means.mean, means.count) == (2.5, 2)
    assert means.of(np.array([1])).tolist() == [2.5]


def test_distances_of_exactly_0_and_1_are_no_evidence_but_count_in_the_means() -> None:
    means = JsMeans(prior_weight=0.0)
    rows, places = np.array([4, 2]), np.array([0, 0, 1, 1])
    means.learn(rows, places, np.array([0.0, 0.6, 0.2, 1.0]), np.array([True, False, True, False]))
    assert means.samples == (1, 1)
    # row 4: (0 + .6) / 2, row 2: (.2 + 1) / 2
    np.testing.assert_allclose(means.thresholds(np.array([2, 4])), [0.6, 0.3])
    means.forget([4, 99])
    means.learn(rows[:1], np.array([0]), np.array([0.5]), np.array([True]))
    means.learn(rows[:1], np.array([0]), np.array([0.7]), np.array([False]))
    np.testing.assert_allclose(means.thresholds(rows[:1]), [0.6])
