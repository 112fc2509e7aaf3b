"""Verification against a dense draft distribution, and block verification, by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import qmc
from torch import Tensor

from engine.sampling.verify import verify_block, verify_standard

Verify = Callable[..., tuple[Tensor, Tensor]]
Law = NDArray[np.float64]

RULES = {"standard": verify_standard, "block": verify_block}
GAMMA, VOCAB = 2, 3
# A low-discrepancy set of uniforms (two to accept, one to choose): as good as a grid of millions.
UNIFORMS = torch.from_numpy(qmc.Sobol(3, seed=0).random_base2(12))
TOLERANCE = 4e-3


@dataclass(frozen=True)
class Pair:
    """Target and draft distributions after no, one and two tokens: `[V]`, `[V, V]`, `[V, V, V]`."""

    p: tuple[Law, Law, Law]
    q: tuple[Law, Law]

    @classmethod
    def random(cls, seed: int, distance: float, one_hot: bool = False) -> Pair:
        """`distance` 0 makes q the same as p; zeros occur in both."""
        rng = np.random.default_rng(seed)
        shapes = [(VOCAB,) * depth for depth in (1, 2, 3)]

        def law(shape: tuple[int, ...]) -> Law:
            weights = rng.exponential(size=shape) * (rng.random(shape) > 0.2) + 1e-9
            drawn: Law = weights / weights.sum(-1, keepdims=True)
            return drawn

        p = [law(shape) for shape in shapes]
        q = [(1 - distance) * mine + distance * law(mine.shape) for mine in p[:GAMMA]]
        if one_hot:
            q = [np.eye(VOCAB)[mine.argmax(-1)] for mine in q]
        return cls((p[0], p[1], p[2]), (q[0], q[1]))

    def target_law(self) -> Law:
        """Of three tokens `[V, V, V]`."""
        law: Law = self.p[0][:, None, None] * self.p[1][:, :, None] * self.p[2]
        return law


def judge(verify: Verify, pair: Pair, verified: int, dense: bool = True) -> tuple[Law, float]:
    """The law of three tokens that the rule gives, once the target has gone on to three, and the mean accepted."""
    law, mean = np.zeros((VOCAB,) * 3), 0.0
    rows = len(UNIFORMS)
    for path in product(range(VOCAB), repeat=GAMMA):
        chance = pair.q[0][path[0]] * pair.q[1][path]
        if chance == 0:
            continue
        probs = torch.from_numpy(np.stack([pair.p[0], pair.p[1][path[0]], pair.p[2][path]]))
        q = torch.from_numpy(np.stack([pair.q[0], pair.q[1][path[0]]])).expand(rows, -1, -1)
        accepted, emitted = verify(
            probs,
            torch.arange(GAMMA + 1).clamp(max=verified).repeat(rows, 1),
            torch.tensor(path).repeat(rows, 1),
            torch.full((rows,), verified),
            UNIFORMS[:, :GAMMA],
            UNIFORMS[:, 2],
            q if dense else None,
        )
        mean += chance * float(accepted.double().mean())
        for count in range(verified + 1):
            blocks, counts = emitted[accepted == count, : count + 1].unique(dim=0, return_counts=True)
            for block, times in zip(blocks.tolist(), (counts / rows).tolist(), strict=True):
                law[tuple(block)] += chance * times * continued(pair, block)
    return law, mean


def continued(pair: Pair, block: list[int]) -> Law | float:
    """The target's law of the tokens that are missing to three."""
    if len(block) == 1:
        law: Law = pair.p[1][block[0], :, None] * pair.p[2][block[0]]
        return law
    return pair.p[2][tuple(block)] if len(block) == 2 else 1.0


@pytest.mark.parametrize("verified", [0, 1, 2])
@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_the_law_is_the_targets_whatever_the_drafter(rule: str, distance: float, verified: int) -> None:
    for seed in range(3):
        pair = Pair.random(seed, distance)
        law, mean = judge(RULES[rule], pair, verified)
        assert law.sum() == pytest.approx(1)
        assert np.abs(law - pair.target_law()).max() < TOLERANCE
        assert 0 <= mean <= verified
        if distance == 0:
            assert mean == verified


@pytest.mark.parametrize("rule", RULES)
def test_a_one_hot_distribution_is_the_same_dense_or_implied(rule: str) -> None:
    for seed in range(3):
        pair = Pair.random(seed, 1.0, one_hot=True)
        law, mean = judge(RULES[rule], pair, GAMMA)
        assert np.abs(law - pair.target_law()).max() < TOLERANCE
        implied_law, implied_mean = judge(RULES[rule], pair, GAMMA, dense=False)
        assert np.array_equal(law, implied_law)
        assert mean == implied_mean


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), distance=st.floats(0, 1))
def test_block_accepts_at_least_as_much_as_standard(seed: int, distance: float) -> None:
    pair = Pair.random(seed, distance)
    accepted = {name: judge(verify, pair, GAMMA)[1] for name, verify in RULES.items()}
    assert accepted["block"] >= accepted["standard"] - TOLERANCE


def test_the_example_of_the_paper() -> None:
    """p = (1/3, 2/3) and q = (2/3, 1/3) in every place: 10/9 of two tokens stand one by one, 11/9 as a block."""
    p, q = np.array([1, 2, 0]) / 3, np.array([2, 1, 0]) / 3
    pair = Pair((p, np.tile(p, (3, 1)), np.tile(p, (3, 3, 1))), (q, np.tile(q, (3, 1))))
    assert judge(verify_standard, pair, GAMMA)[1] == pytest.approx(10 / 9, abs=TOLERANCE)
    assert judge(verify_block, pair, GAMMA)[1] == pytest.approx(11 / 9, abs=TOLERANCE)


@pytest.mark.parametrize("rule", RULES)
def test_a_wrong_residual_is_caught(rule: str) -> None:
    """Redrawing without taking q away: the enumeration must tell."""
    pair = Pair.random(1, 1.0)

    def biased(*args: Tensor) -> tuple[Tensor, Tensor]:
        accepted, _ = RULES[rule](*args)
        plain = verify_standard(args[0], args[1], args[2], accepted, torch.zeros_like(args[4]), args[5], args[6])
        return accepted, plain[1]

    assert np.abs(judge(biased, pair, GAMMA)[0] - pair.target_law()).max() > 5 * TOLERANCE


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_leaves_no_impossible_token(rule: str, dtype: torch.dtype) -> None:
    """q above p by rounding alone: a rejection finds no residual mass and must still choose a token of p."""
    p = torch.tensor([[0.25, 0.75, 0.0]] * 3, dtype=dtype)
    q = (p[:2] * (1 + 4 * torch.finfo(dtype).eps)).unsqueeze(0)
    grid, drafts = torch.arange(3).unsqueeze(0), torch.tensor([[1, 0]])
    for number in (2.0**-53, 0.5, 1 - 2.0**-53):
        uniforms = torch.full((1, 2), number, dtype=torch.float64)
        accepted, emitted = RULES[rule](p, grid, drafts, torch.tensor([2]), uniforms, uniforms[:, 0], q)
        assert all(p[0, int(token)] > 0 for token in emitted[0, : int(accepted) + 1])


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_one_batch_are_judged_apart(rule: str) -> None:
    """Row 0 drafts as the target would, row 1 what it would never say, row 2 verifies one, row 3 is not drafting."""
    sure = torch.eye(4)
    probs = sure[[3, 1, 0, 2, 2, 1, 0, 2]]
    grid = torch.tensor([[0, 1, 2], [3, 4, 4], [5, 6, 6], [7, 7, 7]])
    drafts = torch.tensor([[3, 1], [1, 2], [1, 3], [0, 0]])
    q = sure[drafts]
    q[3] = 0
    half = torch.full((4, 2), 0.5, dtype=torch.float64)
    accepted, emitted = RULES[rule](probs, grid, drafts, torch.tensor([2, 1, 1, 0]), half, half[:, 0], q)
    assert accepted.tolist() == [2, 0, 1, 0]
    assert emitted[0].tolist() == [3, 1, 0]
    assert int(emitted[1, 0]) == 2
    assert emitted[2, :2].tolist() == [1, 0]
    assert int(emitted[3, 0]) == 2
