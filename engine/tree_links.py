"""Who hangs below whom: depths, ancestors, children and paths of every row's tree, from its parents alone.

In all of it a node is named by its *offset* among the row's packed tokens: the root is 0, node i is i + 1.

Shapes: B batch bucket, T nodes, W = T + 1, K most children of a node, P = depth + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class TreeLinks:
    """All `[B, W, ...]`, the root first."""

    up_BW: Tensor  # the parent's offset; the root is its own parent
    depth_BW: Tensor
    rank_BW: Tensor  # place among the siblings
    ancestor_BWW: Tensor  # [b, w, v]: v is w or above it
    child_BWK: Tensor  # offsets in order of rank, 0 where there is no such child

    def path(self, node_B: Tensor, depth: int) -> Tensor:
        """Offsets from the root down to a node `[B, depth + 1]`; past the node the root's."""
        width = self.up_BW.shape[1]
        offset_W = torch.arange(width, device=node_B.device)
        step_P1 = torch.arange(depth + 1, device=node_B.device).unsqueeze(1)
        on_B1W = self.ancestor_BWW.gather(1, node_B.view(-1, 1, 1).expand(-1, 1, width))
        at_BPW = on_B1W & (self.depth_BW.unsqueeze(1) == step_P1)
        return (at_BPW * offset_W).sum(2)


def link(parents_BT: Tensor, depth: int, children: int) -> TreeLinks:
    """Links of trees at most `depth` deep in which no node has more than `children`."""
    up_BW = F.pad(parents_BT + 1, (1, 0))
    batch, width = up_BW.shape
    offset_W = torch.arange(width, device=up_BW.device)
    ancestor_BWW = (offset_W.unsqueeze(1) == offset_W).expand(batch, -1, -1)
    here_BW = offset_W.expand(batch, -1)
    for _ in range(depth):
        here_BW = up_BW.gather(1, here_BW)
        ancestor_BWW = ancestor_BWW | (here_BW.unsqueeze(2) == offset_W)
    older_WW = (offset_W < offset_W.unsqueeze(1)) & (offset_W > 0)
    rank_BW = ((up_BW.unsqueeze(2) == up_BW.unsqueeze(1)) & older_WW).sum(2).clamp(max=children - 1)
    place_BW = up_BW * children + rank_BW
    child_BX = torch.zeros((batch, width * children), dtype=torch.int64, device=up_BW.device)
    child_BX = child_BX.scatter(1, place_BW[:, 1:], offset_W[1:].expand(batch, -1))
    return TreeLinks(up_BW, ancestor_BWW.sum(2) - 1, rank_BW, ancestor_BWW, child_BX.view(batch, width, children))
