"""Which path of a tree stands: by a loop where all is greedy, and by enumeration where tokens are drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import qmc
from torch import Tensor

from engine.sampling.distribution import choose
from engine.sampling.tree import first_children, longest, walk
from engine.tree import StaticTree, static_tree
from engine.tree_links import TreeLinks, link
from engine.tree_step import take_path
from tests.engine.test_tree import links_of, parent_lists

VOCAB = 3
SAMPLES = 1 << 13
TOLERANCE = 3e-3
Law = NDArray[np.float64]
TREES = {
    "chain": (-1, 0),
    "wide": (-1, -1),
    "all tokens": (-1, -1, -1),
    "binary": (-1, -1, 0, 0, 1, 1),
    "ragged": (-1, -1, 0, 1, 1),
}


# --- greedy ----------------------------------------------------------------------------------------------------------


@given(data=st.data(), parents=parent_lists())
def test_greedy_equals_a_loop(data: st.DataObject, parents: tuple[int, ...]) -> None:
    """The longest path on which every node is the target's choice after its parent; twins are tried both."""
    tree = static_tree(parents, 99)
    nodes = len(parents)
    target = data.draw(st.lists(st.integers(0, 1), min_size=nodes + 1, max_size=nodes + 1))
    tokens = data.draw(st.lists(st.integers(0, 1), min_size=nodes, max_size=nodes))
    count = data.draw(st.integers(0, nodes))
    standing = {0: 0}
    for node in range(count):
        parent = tree.parents[node] + 1
        if parent in standing and tokens[node] == target[parent]:
            standing[node + 1] = standing[parent] + 1
    best = max(standing, key=lambda offset: (standing[offset], -offset))
    chosen = longest(torch.tensor([target]), torch.tensor([tokens]), torch.tensor([count]), links_of(tree))
    assert int(chosen) == best


# --- drawn -----------------------------------------------------------------------------------------------------------


def target_after(prefix: tuple[int, ...], seed: int) -> Law:
    """The target's distribution after some tokens; zeros occur."""
    rng = np.random.default_rng([seed, len(prefix), *prefix])
    weights = rng.exponential(size=VOCAB) * (rng.random(VOCAB) > 0.2) + 1e-9
    drawn: Law = weights / weights.sum()
    return drawn


def judge(
    rule: Callable[..., tuple[Tensor, Tensor]], tree: StaticTree, tokens: list[int], count: int, seed: int
) -> Law:
    """The law of depth + 1 tokens that the rule gives, once the target has gone on to so many."""
    prefixes: list[tuple[int, ...]] = [()]
    for node, parent in enumerate(tree.parents):
        prefixes.append((*prefixes[parent + 1], tokens[node]))
    probs = torch.from_numpy(np.stack([target_after(prefix, seed) for prefix in prefixes]))
    uniforms = torch.from_numpy(qmc.Sobol(tree.depth * tree.key.children + 1, seed=0).random(SAMPLES))
    links = links_of(tree, SAMPLES)
    tokens_BT, counts = torch.tensor(tokens).repeat(SAMPLES, 1), torch.full((SAMPLES,), count)
    grid = torch.arange(len(prefixes)).repeat(SAMPLES, 1)
    node_B, left_BV = rule(probs, grid, tokens_BT, counts, uniforms[:, :-1], links)
    path = take_path(node_B, choose(left_BV, uniforms[:, -1]), tokens_BT, links, tree.depth)
    assert (path.offset_BP.amax(1) <= count).all()
    return continued(path.emitted_BP, path.accepted_B, tree.depth + 1, seed)


def continued(emitted_BP: Tensor, accepted_B: Tensor, length: int, seed: int) -> Law:
    law = np.zeros((VOCAB,) * length)
    place = torch.arange(length)
    blocks, counts = torch.where(place <= accepted_B.unsqueeze(1), emitted_BP, -1).unique(dim=0, return_counts=True)
    for block, times in zip(blocks.tolist(), (counts / len(accepted_B)).tolist(), strict=True):
        said = tuple(token for token in block if token >= 0)
        for rest in product(range(VOCAB), repeat=length - len(said)):
            chance = 1.0
            for step in range(len(rest)):
                chance *= target_after((*said, *rest[:step]), seed)[rest[step]]
            law[(*said, *rest)] += times * chance
    return law


def target_law(length: int, seed: int) -> Law:
    law = np.ones((VOCAB,) * length)
    for answer in product(range(VOCAB), repeat=length):
        for step, token in enumerate(answer):
            law[answer] *= target_after(answer[:step], seed)[token]
    return law


def distance(rule: Callable[..., tuple[Tensor, Tensor]], parents: tuple[int, ...], seed: int, cut: int = 0) -> float:
    """How far from the target's law the rule is, for tokens picked at random, twins among siblings included."""
    tree = static_tree(parents, 99)
    tokens = np.random.default_rng(seed).integers(0, VOCAB, len(parents)).tolist()
    law = judge(rule, tree, tokens, len(parents) - cut, seed)
    assert law.sum() == pytest.approx(1)
    return float(np.abs(law - target_law(tree.depth + 1, seed)).max())


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_the_law_is_the_targets_whatever_the_candidates(parents: tuple[int, ...], cut: int) -> None:
    assert max(distance(walk, parents, seed, cut) for seed in range(8)) < TOLERANCE


def without_taking_out(
    probs_NV: Tensor, grid_BW: Tensor, tokens_BT: Tensor, count_B: Tensor, accept_BX: Tensor, links: TreeLinks
) -> tuple[Tensor, Tensor]:
    """The next token comes from p itself, whatever was refused."""
    node_B, _ = walk(probs_NV, grid_BW, tokens_BT, count_B, accept_BX, links)
    return node_B, probs_NV[grid_BW.gather(1, node_B.unsqueeze(1)).squeeze(1)]


def one_number_per_level(
    probs_NV: Tensor, grid_BW: Tensor, tokens_BT: Tensor, count_B: Tensor, accept_BX: Tensor, links: TreeLinks
) -> tuple[Tensor, Tensor]:
    """Siblings are judged with the same number."""
    most = links.child_BWK.shape[2]
    return walk(probs_NV, grid_BW, tokens_BT, count_B, accept_BX[:, ::most].repeat_interleave(most, 1), links)


@pytest.mark.parametrize("biased", [without_taking_out, one_number_per_level])
def test_a_biased_rule_is_caught(biased: Callable[..., tuple[Tensor, Tensor]]) -> None:
    assert max(distance(biased, TREES["binary"], seed) for seed in range(8)) > 5 * TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_rounding_leaves_no_impossible_token(dtype: torch.dtype, number: float) -> None:
    """Candidates that hold all of p between them."""
    probs = torch.tensor([[0.1, 0.0, 0.9 + 1e-8]] * 4, dtype=dtype)
    links = link(torch.tensor([[-1, -1, -1]]), 1, 3)
    uniforms = torch.full((1, 3), number, dtype=torch.float64)
    for tokens in ([0, 1, 2], [1, 2, 0], [2, 2, 0], [1, 1, 1]):
        node, left = walk(
            probs, torch.arange(4).unsqueeze(0), torch.tensor([tokens]), torch.tensor([3]), uniforms, links
        )
        said = tokens[int(node) - 1] if int(node) else int(choose(left, uniforms[:, 0]))
        assert said != 1


def test_rows_of_one_batch_are_judged_apart() -> None:
    """Row 0 is sure of its second branch, row 1 of none, row 2 verifies one node, row 3 none."""
    sure = torch.eye(4)
    links = link(torch.tensor([[-1, -1, 1]] * 4), 2, 2)
    probs = sure[[3, 0, 1, 2, 2, 0, 0, 0, 1, 3, 0]]
    grid = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9], [10, 10, 10, 10]])
    tokens = torch.tensor([[0, 3, 1], [1, 3, 0], [1, 1, 3], [0, 0, 0]])
    half = torch.full((4, 4), 0.5, dtype=torch.float64)
    node, left = walk(probs, grid, tokens, torch.tensor([3, 3, 1, 0]), half, links)
    assert node.tolist() == [3, 0, 1, 0]
    assert choose(left, half[:, 0]).tolist() == [2, 2, 3, 0]


# --- as asked for ----------------------------------------------------------------------------------------------------


def test_synthetic_acceptance_goes_down_the_first_children() -> None:
    links = link(torch.tensor([[-1, -1, 0, 0, 2]] * 4), 3, 2)
    stands = torch.tensor([[True, True, True], [True, False, True], [True, True, True], [True, True, True]])
    assert first_children(stands, torch.tensor([5, 5, 3, 0]), links).tolist() == [5, 1, 3, 0]
