"""Growing a tree level by level: which nodes to read next, and what hangs below them.

Shapes: B batch bucket, I nodes with children at one depth, W nodes + 1, T nodes, K most children, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.tree import TreeState
from engine.tree_links import TreeLinks


def inner_nodes(links: TreeLinks, depth: int, count: int) -> Tensor:
    """Offsets of the `count` nodes of this depth that have children `[B, I]`."""
    inner_BW = (links.depth_BW == depth) & (links.child_BWK[:, :, 0] > 0)
    return inner_BW.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :count]


def hang(tree: TreeState, links: TreeLinks, inner_BI: Tensor, logits_BIV: Tensor, ids_V: Tensor | None = None) -> None:
    """Below each of the inner nodes, all of one depth, put the most likely tokens after it, best first.

    With `ids_V` the logits are over a draft vocabulary, whose token i is the target's `ids_V[i]`.
    """
    batch, nodes = inner_BI.shape[0], links.up_BW.shape[1] - 1
    best_BIK = logits_BIV.topk(min(links.child_BWK.shape[2], logits_BIV.shape[2]), dim=2).indices
    most = best_BIK.shape[2]
    place_I = torch.arange(inner_BI.shape[1], device=inner_BI.device)
    place_BW = torch.zeros_like(links.up_BW).scatter(1, inner_BI, place_I.expand_as(inner_BI))
    # A node with more children than the vocabulary has tokens repeats the last: no harm, siblings may be the same.
    pick_BT = place_BW.gather(1, links.up_BW[:, 1:]) * most + links.rank_BW[:, 1:].clamp(max=most - 1)
    below_BT = links.depth_BW[:, 1:] == links.depth_BW.gather(1, inner_BI[:, :1]) + 1
    found_BT = best_BIK.flatten(1).gather(1, pick_BT)
    if ids_V is not None:
        found_BT = ids_V.take(found_BT)
    tokens_BT = tree.tokens_RT[:batch, :nodes]
    tokens_BT.copy_(torch.where(below_BT, found_BT, tokens_BT))
