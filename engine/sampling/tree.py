"""Which path of a tree stands.

The candidates at a node are its children, chosen without chance (a model's most likely tokens, copied text): the
proposal is one-hot on each in turn. A row verifies the first `count` of its nodes, a number known before any token.

Shapes: B batch bucket, T nodes, W = T + 1, G = γ = depth, K most children, X = G · K, N packed tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampling.verify import count_accepted
from engine.tree_links import TreeLinks


def longest(target_BW: Tensor, tokens_BT: Tensor, count_B: Tensor, links: TreeLinks) -> Tensor:
    """All rows greedy: the offset of the deepest node to which all agree with the target's choices `[B]`.

    Siblings may be the same token: of equally deep nodes it is the first.
    """
    width = target_BW.shape[1]
    offset_W = torch.arange(width, device=target_BW.device)
    agrees_BT = tokens_BT == target_BW.gather(1, links.up_BW[:, 1:])
    stands_BT = agrees_BT & (offset_W[1:] <= count_B.unsqueeze(1))
    stands_BW = torch.cat([torch.ones_like(stands_BT[:, :1]), stands_BT], 1)
    broken_BW = (links.ancestor_BWW & ~stands_BW.unsqueeze(1)).any(2)
    score_BW = torch.where(broken_BW, -1, links.depth_BW * width - offset_W)
    return score_BW.argmax(1)


def walk(
    probs_NV: Tensor, grid_BW: Tensor, tokens_BT: Tensor, count_B: Tensor, accept_BX: Tensor, links: TreeLinks
) -> tuple[Tensor, Tensor]:
    """Recursive rejection sampling (SpecInfer, Miao et al. 2024) with one-hot proposals: exact whatever the tokens.

    From the root down, a node's children are tried in order. Child x stands with probability r(x), where r is p at
    first; once refused, x is taken out of r, which is renormalised. Where all children are refused the next token comes
    from what is left of r. `accept_BX` are uniforms, K per depth. Returns the offset of the last node that stands
    `[B]` and the weights to draw the next token from, not normalised `[B, V]`.
    """
    most = links.child_BWK.shape[2]
    child_BX = links.child_BWK.flatten(1)
    node_B, walking_B = torch.zeros_like(count_B), torch.ones_like(count_B, dtype=torch.bool)
    left_BV = probs_NV.index_select(0, grid_BW[:, 0])
    for depth in range(accept_BX.shape[1] // most):
        next_B, mass_B = torch.zeros_like(node_B), torch.ones_like(left_BV[:, 0])
        for rank in range(most):
            offset_B = child_BX.gather(1, (node_B * most + rank).unsqueeze(1)).squeeze(1)
            tried_B = walking_B & (next_B == 0) & (offset_B > 0) & (offset_B <= count_B)
            token_B1 = tokens_BT.gather(1, (offset_B - 1).clamp(min=0).unsqueeze(1))
            chance_B = left_BV.gather(1, token_B1).squeeze(1)
            stands_B = tried_B & (accept_BX[:, depth * most + rank] * mass_B < chance_B)
            refused_B = tried_B & ~stands_B
            next_B = torch.where(stands_B, offset_B, next_B)
            left_BV = left_BV.scatter(1, token_B1, torch.where(refused_B, 0.0, chance_B).unsqueeze(1))
            mass_B = torch.where(refused_B, left_BV.sum(1), mass_B)
        walking_B = next_B > 0
        node_B = torch.where(walking_B, next_B, node_B)
        there_BV = probs_NV.index_select(0, grid_BW.gather(1, node_B.unsqueeze(1)).squeeze(1))
        left_BV = torch.where(walking_B.unsqueeze(1), there_BV, left_BV)
    # Where p and its candidates differ by rounding alone, a rejection can find no mass left.
    there_BV = probs_NV.index_select(0, grid_BW.gather(1, node_B.unsqueeze(1)).squeeze(1))
    return node_B, torch.where(left_BV.sum(1, keepdim=True) > 0, left_BV, there_BV)


def first_children(stands_BG: Tensor, count_B: Tensor, links: TreeLinks) -> Tensor:
    """Down from the root by first children, as far as `stands_BG` has it: synthetic acceptance. Offsets `[B]`."""
    node_B = torch.zeros_like(count_B)
    path = [node_B]
    for _ in range(stands_BG.shape[1]):
        node_B = links.child_BWK[:, :, 0].gather(1, node_B.unsqueeze(1)).squeeze(1)
        path.append(node_B)
    path_BP = torch.stack(path, 1)
    there_BG = (path_BP[:, 1:] > 0) & (path_BP[:, 1:] <= count_B.unsqueeze(1))
    accepted_B = count_accepted(stands_BG, there_BG.cumprod(1).sum(1))
    return path_BP.gather(1, accepted_B.unsqueeze(1)).squeeze(1)
