"""Trees of draft tokens: their shape on the host, and the buffers that hold every row's own tree on the device.

Nodes are kept level by level, each after its parent and siblings in order. So the first few nodes are a tree again, and
what a row can not verify is cut off by a number. A node hangs below another or, with parent -1, below the *root*, the
row's newest token.

Shapes: R rows, T most nodes, B batch bucket.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.batch import RowState
from engine.graphs import Write
from engine.tree_links import TreeLinks, link


@dataclass(frozen=True, slots=True)
class TreeKey:
    """What fixes the shapes of a tree's pieces; which node hangs where is data. `inner[d]` nodes of depth d + 1 have
    children, which nodes of the last depth never have; no node has more than `children`.
    """

    nodes: int
    children: int
    inner: tuple[int, ...]

    @property
    def depth(self) -> int:
        return len(self.inner) + 1


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree that the host decided on. `depths` ascend from 1."""

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    key: TreeKey

    @property
    def depth(self) -> int:
        return self.depths[-1]

    def count(self, reach: int, space: int) -> int:
        """Nodes that a row verifies which may emit `reach` draft tokens and has slots for `space`."""
        return max(min(bisect_right(self.depths, reach), space), 0)

    def levels(self, count: int) -> list[int]:
        """How many of the first `count` nodes have depth 1, 2, ..."""
        depths = self.depths[:count]
        return [depths.count(depth) for depth in range(1, depths[-1] + 1)] if depths else []


@lru_cache(maxsize=256)
def static_tree(parents: tuple[int, ...], gamma: int) -> StaticTree:
    """Put `parents` (each before its children, -1 for the root) level by level, and cut what is deeper than γ ≥ 1."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    order = sorted((node for node, depth in enumerate(depths) if depth <= gamma), key=depths.__getitem__)
    place = {-1: -1} | {node: new for new, node in enumerate(order)}
    moved = tuple(place[parents[node]] for node in order)
    levels = tuple(depths[node] for node in order)
    inner = [0] * (levels[-1] - 1)
    for parent in {*moved} - {-1}:
        inner[levels[parent] - 1] += 1
    children = max(moved.count(parent) for parent in moved)
    return StaticTree(moved, levels, TreeKey(len(moved), children, tuple(inner)))


class TreeState:
    """Persistent buffers. `shape_T` is what the host decided; each row has parents, tokens and a count of its own."""

    def __init__(self, rows: int, max_nodes: int, device: str) -> None:
        self.max_nodes = max_nodes
        self.shape_T = torch.full((max_nodes,), -1, dtype=torch.int64, device=device)
        self.parents_RT = torch.full((rows + 1, max_nodes), -1, dtype=torch.int64, device=device)
        self.tokens_RT = torch.zeros((rows + 1, max_nodes), dtype=torch.int64, device=device)
        self.counts_R = torch.zeros(rows + 1, dtype=torch.int64, device=device)  # nodes that the row verifies

    def decide(self, write: Write, tree: StaticTree) -> None:
        """Set the shape that `plant` gives to the rows."""
        parents: Sequence[int] = tree.parents
        write(self.shape_T[: len(parents)], parents)

    def plant(self, state: RowState, batch: int, key: TreeKey, limit: int) -> TreeLinks:
        """Give each of the first `batch` rows the decided tree, as much of it as `StaticTree.count` says.

        `limit` is the capacity of the drafter's own cache, whose deepest nodes need no slot.
        """
        self.parents_RT[:batch, : key.nodes].copy_(self.shape_T[: key.nodes].expand(batch, -1))
        links = self.links(batch, key)
        reached_BT = links.depth_BW[:, 1:] <= state.available(batch).unsqueeze(1)
        space_B = min(state.capacity, limit + 1) - state.lens_R[:batch]
        self.counts_R[:batch].copy_(torch.minimum(reached_BT.sum(1), space_B).clamp(min=0))
        return links

    def links(self, batch: int, key: TreeKey) -> TreeLinks:
        return link(self.parents_RT[:batch, : key.nodes], key.depth, key.children)

    def mutable(self) -> list[Tensor]:
        """What a step changes and a capture's warm-up must put back."""
        return [self.parents_RT, self.tokens_RT, self.counts_R]
