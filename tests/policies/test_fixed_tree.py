"""The same tree, or a refusal that names what there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive.contract import Policy, TreeLimits, TreeShape
from policies import FixedTree
from tests.policies.steps import CAPS, view

TREES = replace(CAPS, tree=TreeLimits(max_depth=4, max_width=4, max_nodes=8))


def test_same_tree_at_every_batch_size() -> None:
    policy = FixedTree((-1, 0, -1, 1))
    needs = policy.bind(TREES)
    assert needs.gammas == {bucket: (0, 3) for bucket in CAPS.batch_buckets}
    assert needs.trees == {TreeShape((-1, 0, -1, 1))}
    for size in (0, 1, 64):
        decision = policy.decide(view(size))
        assert (decision.gamma, decision.tree) == (3, TreeShape((-1, 0, -1, 1)))


@pytest.mark.parametrize(
    ("widths", "parents"),
    [((3,), (-1, -1, -1)), ((1, 1, 1), (-1, 0, 1)), ((2, 2, 1), (-1, -1, 0, 0, 1, 1, 2, 3, 4, 5))],
)
def test_branching(widths: tuple[int, ...], parents: tuple[int, ...]) -> None:
    assert FixedTree.branching(*widths).parents == parents


@pytest.mark.parametrize(
    ("parents", "message"),
    [((), "at least one node"), ((-1, 1), "node 1 hangs below 1, give -1 to 0"), ((-2,), "node 0 hangs below -2")],
)
def test_what_is_no_tree_is_refused(parents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedTree(parents)


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((1, 1, 1, 1, 1), "depth is 5 and this engine offers 4"),
        ((5,), "width is 5 and this engine offers 4"),
        ((3, 1, 1), "number of nodes is 9 and this engine offers 8"),
    ],
)
def test_what_the_engine_can_not_hold_is_refused(widths: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedTree.branching(*widths).bind(TREES)


def test_an_engine_without_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="no trees: give it max_tree_nodes"):
        FixedTree((-1,)).bind(CAPS)


def test_a_depth_that_is_no_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match=r"depth 2 is not offered by this engine: \[0, 1, 3\]"):
        FixedTree((-1, 0)).bind(replace(TREES, gammas=(0, 1, 3)))


def test_is_a_policy_and_clones() -> None:
    policy = FixedTree.branching(2, 1)
    assert isinstance(policy, Policy)
    assert policy.clone() is not policy
    assert policy.clone().parents == policy.parents
