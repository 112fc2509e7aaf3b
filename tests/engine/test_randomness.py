from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from engine.sampling import randomness
from engine.sampling.randomness import ACCEPT, CHOOSE, DRAFT, uniform

SEEDS, STEPS, PLACES = 40, 50, 17
SEED_KINDS = {
    "small": torch.arange(SEEDS),
    "wide": torch.randint(2**62, (SEEDS,), generator=torch.Generator().manual_seed(0)),
    "high": 2**63 - 1 - torch.arange(SEEDS),
}


def grid(seeds: torch.Tensor, stream: int) -> NDArray[np.float64]:
    """`[SEEDS, STEPS, PLACES]`."""
    return uniform(seeds.view(-1, 1, 1), torch.arange(STEPS).view(-1, 1), torch.arange(PLACES), stream).numpy()


@pytest.mark.parametrize("seeds", SEED_KINDS.values(), ids=SEED_KINDS)
@pytest.mark.parametrize("stream", [ACCEPT, CHOOSE, DRAFT])
def test_numbers_are_uniform(seeds: torch.Tensor, stream: int) -> None:
    numbers = grid(seeds, stream)
    flat = numbers.ravel()
    assert numbers.dtype == np.float64
    assert 0 < flat.min() < flat.max() < 1
    count = len(flat)
    assert abs(flat.mean() - 1 / 2) < 4 / np.sqrt(12 * count)
    assert abs(flat.var() - 1 / 12) < 4 / np.sqrt(180 * count)
    assert kstest(flat, "uniform").pvalue > 1e-3
    for cells in (16, 100):
        assert chisquare(np.histogram(flat, cells, (0, 1))[0]).pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seed", "step", "position"])
def test_every_line_along_an_axis_is_uniform(axis: int) -> None:
    lines = np.moveaxis(grid(SEED_KINDS["small"], ACCEPT), axis, 0)
    pvalues = [kstest(line.ravel(), "uniform").pvalue for line in lines]
    assert min(pvalues) > 1e-3 / len(pvalues)


def test_no_number_comes_twice() -> None:
    numbers = np.stack([grid(seeds, stream) for seeds in SEED_KINDS.values() for stream in (ACCEPT, CHOOSE, DRAFT)])
    assert len(np.unique(numbers)) == numbers.size


def test_neighbours_and_streams_are_independent() -> None:
    accept, chosen = grid(SEED_KINDS["small"], ACCEPT), grid(SEED_KINDS["small"], CHOOSE)
    pairs = {
        "streams": (accept, chosen),
        "stream and next place": (accept[..., 1:], chosen[..., :-1]),
        "drafting and judging": (grid(SEED_KINDS["small"], DRAFT), accept),
        "drafting and judging the next": (grid(SEED_KINDS["small"], DRAFT)[..., :-1], accept[..., 1:]),
        "seeds": (accept[1:], accept[:-1]),
        "steps": (accept[:, 1:], accept[:, :-1]),
        "places": (accept[..., 1:], accept[..., :-1]),
        "step against place": (accept[:, 1:, :-1], accept[:, :-1, 1:]),
        "seed against step": (accept[1:, :-1], accept[:-1, 1:]),
    }
    for name, (left, right) in pairs.items():
        correlation = np.corrcoef(left.ravel(), right.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(left.size), name
        joint = np.histogram2d(left.ravel(), right.ravel(), bins=8, range=[(0, 1), (0, 1)])[0]
        assert chisquare(joint.ravel()).pvalue > 1e-4, name


def test_every_part_of_the_key_counts() -> None:
    keys = [(3, 5, 7, 0), (4, 5, 7, 0), (3, 6, 7, 0), (3, 5, 8, 0), (3, 5, 7, 1), (5, 3, 7, 0), (3, 7, 5, 0)]
    numbers = [
        float(uniform(torch.tensor(seed), torch.tensor(step), torch.tensor(place), stream))
        for seed, step, place, stream in keys
    ]
    assert all(left != right for left, right in combinations(numbers, 2))


def test_the_same_key_gives_the_same_number() -> None:
    assert np.array_equal(grid(SEED_KINDS["wide"], CHOOSE), grid(SEED_KINDS["wide"], CHOOSE))


@pytest.mark.parametrize("bits", [-1, 0, 2**63 - 1, -(2**63), -2, 1 << 11, 1 << 12])
def test_the_ends_are_open_for_every_hash(bits: int) -> None:
    assert 0.0 < float(randomness._open_unit(torch.tensor(bits))) < 1.0
