"""AdaSD's densities from running histograms, against scipy's kernel density estimate of the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from adaptive.contract import FloatArray
from policies.js_posterior import JsPosterior
from policies.rows import RowMeans

RNG = np.random.default_rng(11)
ACCEPTED = np.clip(RNG.beta(2, 8, 600), 1e-6, 1 - 1e-6)
REJECTED = np.clip(RNG.beta(5, 4, 150), 1e-6, 1 - 1e-6)


def taught(accepted: FloatArray, rejected: FloatArray, row: int = 0) -> JsPosterior:
    posterior = JsPosterior()
    distances = np.concatenate([accepted, rejected])
    stood = np.arange(len(distances)) < len(accepted)
    posterior.learn(np.array([row]), np.zeros(len(distances), np.int64), distances, stood)
    return posterior


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("count", [30, 150])
def test_density_is_scipys(accepted: bool, count: int) -> None:
    samples = (ACCEPTED if accepted else REJECTED)[:count]
    posterior = taught(ACCEPTED[:count], REJECTED[:count])
    expected = gaussian_kde(samples, "silverman")(posterior.grid_K)
    np.testing.assert_allclose(posterior.density(accepted), expected, atol=0.03 * expected.max())


def test_posterior_is_bayes_over_scipys_densities() -> None:
    posterior = taught(ACCEPTED, REJECTED)
    table = posterior.tables(np.array([7]))[0]
    grid = posterior.grid_K
    weight_a = gaussian_kde(ACCEPTED, "silverman")(grid) * 600 / 750
    weight_r = gaussian_kde(REJECTED, "silverman")(grid) * 150 / 750
    expected = weight_a / (weight_a + weight_r)
    seen = (grid > 0.02) & (grid < 0.8)
    np.testing.assert_allclose(table[seen], expected[seen], atol=0.03)
    assert (table[0], table[-1]) == (1.0, 0.0)
    assert table.shape == (33,)


def test_distances_of_exactly_0_and_1_are_left_out() -> None:
    posterior = taught(np.array([0.0, 0.2, 0.3]), np.array([1.0, 0.8]))
    assert posterior.samples == (1, 2)


def test_a_bandwidth_by_hand() -> None:
    """Two samples at .25 and .75: s = .35355, width = s · (3 · 2 / 4)^-.2 = .326."""
    posterior = taught(np.array([0.25, 0.75]), np.array([0.5]))
    width = 0.35355 * 1.5**-0.2
    at_half = np.exp(-0.5 * (0.25 / width) ** 2) / (width * np.sqrt(2 * np.pi))
    assert posterior.density(True)[16] == pytest.approx(at_half, rel=0.03)


def test_a_new_request_starts_from_all_requests_and_then_goes_its_own_way() -> None:
    posterior = taught(ACCEPTED, REJECTED)
    shared = posterior.tables(np.array([3]))[0]
    np.testing.assert_array_equal(posterior.tables(np.array([5]))[0], shared)
    # a request whose tokens are rejected at small distances, where others' are accepted
    posterior.learn(np.array([3]), np.zeros(60, np.int64), np.full(60, 0.15), np.zeros(60, np.bool_))
    own = posterior.tables(np.array([3]))[0]
    near = round(0.15 * 32)
    assert own[near] < 0.4 < shared[near]
    posterior.forget([3, 99])
    np.testing.assert_allclose(posterior.tables(np.array([3]))[0], posterior.tables(np.array([6]))[0])


def test_many_rows_are_refreshed_a_few_at_a_time() -> None:
    posterior = JsPosterior()
    rows = np.repeat(np.arange(40), 12)
    for _ in range(6):
        posterior.learn(np.arange(40), rows, RNG.random(480) * 0.98 + 0.01, RNG.random(480) < 0.5)
    tables = posterior.tables(np.arange(40))
    assert np.isfinite(tables).all()
    assert ((tables >= 0) & (tables <= 1)).all()
    assert len(np.unique(tables, axis=0)) > 20


def test_row_means_by_hand() -> None:
    means = RowMeans(prior_weight=2.0)
    assert np.isnan(means.of(np.array([0]))).all()
    means.add(np.array([0]), np.array([6.0]), np.array([3.0]))
    means.add(np.array([2]), np.array([1.0]), np.array([1.0]))
    # over all 7 / 4 = 1.75; row 0: (6 + 2 · 1.75) / 5, row 1: 1.75, row 2: (1 + 3.5) / 3
    np.testing.assert_allclose(means.of(np.array([0, 1, 2])), [1.9, 1.75, 1.5])
    means.forget([0, 77])
    np.testing.assert_allclose(means.of(np.array([0])), [1.75])


@pytest.mark.parametrize("accepted", [True, False])
def test_running_histograms_give_scipys_density_of_all_samples(accepted: bool) -> None:
    """Filled step by step from many rows: within 2 % of the density's peak, at every grid point."""
    posterior, seen = JsPosterior(), []
    rng = np.random.default_rng(21)
    for _ in range(100):
        rows = np.sort(rng.choice(300, 8, replace=False))
        place = np.repeat(np.arange(8), 3)
        stood = rng.random(24) < 0.7
        distance = np.where(stood, rng.beta(2, 8, 24), rng.beta(5, 4, 24))
        posterior.learn(rows, place, distance, stood)
        seen.append((distance, stood))
    distances, outcomes = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    expected = gaussian_kde(distances[outcomes == accepted], "silverman")(posterior.grid_K)
    np.testing.assert_allclose(posterior.density(accepted), expected, atol=0.02 * expected.max())
    assert posterior.samples == (int((~outcomes).sum()), int(outcomes.sum()))


def test_rows_without_a_table_of_their_own_follow_that_of_all_requests() -> None:
    posterior = taught(ACCEPTED[:40], REJECTED[:40])
    before = posterior.tables(np.array([5]))[0]
    for _ in range(20):
        posterior.learn(np.array([0]), np.zeros(10, np.int64), np.full(10, 0.3), np.zeros(10, np.bool_))
    # row 5 was asked about before, row 9 was not
    five, nine = posterior.tables(np.array([5, 9]))
    np.testing.assert_array_equal(five, nine)
    assert five[10] < before[10] - 0.1
