"""Trees on the host and on the device: order, cuts, links, masks, and keys and values that follow a path."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import tree_mask
from engine.batch import RowState
from engine.kv import KVCache
from engine.tree import StaticTree, TreeKey, TreeState, static_tree
from engine.tree_links import TreeLinks, link
from engine.tree_step import pack_tree
from tests.engine.tiny import TINY


@st.composite
def parent_lists(draw: st.DrawFn, most: int = 9) -> tuple[int, ...]:
    return tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, most))))


def chain_up(parents: tuple[int, ...], node: int) -> list[int]:
    """The node and all above it, without the root."""
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path


def links_of(tree: StaticTree, rows: int = 1) -> TreeLinks:
    return link(torch.tensor([tree.parents] * rows), tree.depth, tree.key.children)


# --- on the host -----------------------------------------------------------------------------------------------------


def test_a_tree_is_put_level_by_level() -> None:
    tree = static_tree((-1, 0, -1, 1, 0, 2, 3, 3), 9)
    assert tree.parents == (-1, -1, 0, 0, 1, 2, 5, 5)
    assert tree.depths == (1, 1, 2, 2, 2, 3, 4, 4)
    assert tree.key == TreeKey(nodes=8, children=2, inner=(2, 1, 1))
    assert tree.levels(6) == [2, 3, 1]
    assert tree.levels(0) == []


@pytest.mark.parametrize(("gamma", "parents"), [(1, (-1, -1)), (2, (-1, -1, 0, 0, 1)), (3, (-1, -1, 0, 0, 1, 2))])
def test_a_smaller_gamma_cuts_the_tree(gamma: int, parents: tuple[int, ...]) -> None:
    tree = static_tree((-1, 0, -1, 1, 0, 2, 3, 3), gamma)
    assert tree.parents == parents
    assert tree.depth == gamma == tree.key.depth


@given(parents=parent_lists(), gamma=st.integers(1, 9))
def test_order_changes_no_path(parents: tuple[int, ...], gamma: int) -> None:
    """The same set of paths, each a list of places among siblings, and every beginning of the nodes is a tree."""

    def paths(parents: tuple[int, ...]) -> set[tuple[int, ...]]:
        ranks = [parents[:node].count(parent) for node, parent in enumerate(parents)]
        return {tuple(ranks[above] for above in reversed(chain_up(parents, node))) for node in range(len(parents))}

    tree = static_tree(parents, gamma)
    assert paths(tree.parents) == {path for path in paths(parents) if len(path) <= gamma}
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert list(tree.depths) == sorted(tree.depths)


@given(parents=parent_lists(), reach=st.integers(-2, 12), space=st.integers(-2, 12))
def test_count_is_what_fits(parents: tuple[int, ...], reach: int, space: int) -> None:
    tree = static_tree(parents, 99)
    shallow = sum(depth <= reach for depth in tree.depths)
    assert tree.count(reach, space) == max(min(shallow, space), 0)
    assert sum(tree.levels(tree.count(reach, space))) == tree.count(reach, space)


# --- on the device ---------------------------------------------------------------------------------------------------


@given(parents=parent_lists())
def test_links_equal_a_walk_by_hand(parents: tuple[int, ...]) -> None:
    tree = static_tree(parents, 99)
    links = links_of(tree)
    assert links.depth_BW[0].tolist() == [0, *tree.depths]
    for node, parent in enumerate(tree.parents):
        above = {0, *(place + 1 for place in chain_up(tree.parents, node))}
        assert set(links.ancestor_BWW[0, node + 1].nonzero().flatten().tolist()) == above
        assert int(links.rank_BW[0, node + 1]) == tree.parents[:node].count(parent)
        path = [0, *sorted(place + 1 for place in chain_up(tree.parents, node))]
        found = links.path(torch.tensor([node + 1]), tree.depth)[0].tolist()
        assert found == path + [0] * (tree.depth + 1 - len(path))
    for offset in range(len(tree.parents) + 1):
        children = [node + 1 for node, parent in enumerate(tree.parents) if parent + 1 == offset]
        assert links.child_BWK[0, offset].tolist() == children + [0] * (tree.key.children - len(children))


def test_rows_may_have_trees_of_their_own() -> None:
    """The device goes by each row's parents: nothing of the shape is fixed but the numbers of the key."""
    links = link(torch.tensor([[-1, 0, 1], [-1, -1, 1]]), depth=3, children=2)
    assert links.depth_BW.tolist() == [[0, 1, 2, 3], [0, 1, 1, 2]]
    assert links.path(torch.tensor([3, 3]), 3).tolist() == [[0, 1, 2, 3], [0, 2, 3, 0]]


@given(parents=parent_lists(), root=st.integers(0, 6), window=st.sampled_from([None, 1, 2, 5]))
def test_a_token_sees_its_past_and_its_ancestors(parents: tuple[int, ...], root: int, window: int | None) -> None:
    tree = static_tree(parents, 99)
    width, context = len(parents) + 1, 20
    mask = tree_mask(
        torch.tensor([root]), torch.arange(width).unsqueeze(0), links_of(tree), context, window, 2, torch.float32
    )
    assert mask.shape == (1, 1, 2 * width, context)
    depths = [0, *tree.depths]
    for offset in range(width):
        above = {0} if offset == 0 else {0, *(node + 1 for node in chain_up(tree.parents, offset - 1))}
        position = {slot: slot for slot in range(root)} | {root + place: root + depths[place] for place in above}
        near = {slot for slot, where in position.items() if window is None or root + depths[offset] - where < window}
        for group in (0, 1):
            seen = mask[0, 0, 2 * offset + group]
            assert set((seen == 0).nonzero().flatten().tolist()) == near
            assert seen[seen != 0].eq(-math.inf).all()


def test_a_path_moves_to_the_slots_after_its_root() -> None:
    kv = KVCache.allocate(TINY, rows=3, capacity=10, dtype=torch.float64, device="cpu")
    for half in (*kv.keys, *kv.values):
        half.copy_(torch.arange(31.0).view(1, -1, 1).expand_as(half))
    path_BP = torch.tensor([[0, 2, 5, 0], [0, 1, 3, 6], [0, 4, 5, 6]])
    kv.move_path(torch.tensor([2, 0, 3]), path_BP, torch.tensor([2, 3, 0]))

    def slots(half: Tensor) -> list[float]:
        return half[0, :30, 0].tolist()

    expected = [float(slot) for slot in range(30)]
    expected[3:5] = [4, 7]
    expected[11:14] = [11, 13, 16]
    for half in (*kv.keys, *kv.values):
        assert slots(half) == expected


def test_counts_of_another_step_never_lead_out_of_the_row() -> None:
    """A piece that is recorded while rows are served runs once on what the last tree left."""
    state, trees = RowState(rows=2, capacity=16, max_gamma=4, device="cpu"), TreeState(2, 8, "cpu")
    state.live_R[:2], trees.counts_R[:2] = 1, 8
    state.lens_R[:2] = torch.tensor([14, 16])
    layout = pack_tree(state, trees, 2, TreeKey(nodes=8, children=8, inner=()), tokens=18)
    place_N = state.lens_R[layout.row_N] - 1 + layout.offset_N
    assert place_N[layout.row_N < 2].tolist() == [13, 14, 15, 15]
