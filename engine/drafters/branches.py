"""A tree of copied text: several continuations side by side, the drafter's own first.

Shapes: B batch bucket, C context bucket, G = γ = depth, L lanes, T nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.tree_links import TreeLinks


def match_lengths(history_BC: Tensor, lens_B1: Tensor, most: int) -> Tensor:
    """How many tokens ending at each place equal the newest ones, up to `most` `[B, C]`."""
    run_BC = torch.zeros_like(history_BC)
    equal_BC = torch.ones_like(history_BC, dtype=torch.bool)
    for back in range(min(most, history_BC.shape[1])):
        token_B1 = history_BC.gather(1, (lens_B1 - 1 - back).clamp(min=0))
        same_BC = history_BC == token_B1
        equal_BC = equal_BC & F.pad(same_BC[:, : same_BC.shape[1] - back], (back, 0))
        run_BC = run_BC + equal_BC
    return run_BC


def lanes(history_BC: Tensor, lens_B1: Tensor, run_BC: Tensor, chain_BG: Tensor, count: int) -> Tensor:
    """`count` continuations that begin differently `[B, L, G]`: the chain, then those after the next best matches.

    `run_BC` says how many tokens ending at each place equal the newest ones: the longest match counts, the most recent
    of equals. Where matches run out a lane holds any text.
    """
    context = history_BC.shape[1]
    index_C = torch.arange(context, device=history_BC.device)
    step_G = torch.arange(chain_BG.shape[1], device=history_BC.device)
    after_BC = F.pad(history_BC[:, 1:], (0, 1))
    score_BC = torch.where(index_C < lens_B1 - 1, run_BC, 0) * context + index_C
    found = [chain_BG]
    while len(found) < count:
        score_BC = torch.where(after_BC == found[-1][:, :1], 0, score_BC)
        end_B1 = score_BC.argmax(1, keepdim=True)
        period_B1 = (lens_B1 - 1 - end_B1).clamp(min=1)
        source_BG = (end_B1 + 1 + step_G % period_B1).clamp(max=context - 1)
        found.append(history_BC.gather(1, source_BG))
    return torch.stack(found, 1)


def spread(lanes_BLG: Tensor, links: TreeLinks) -> Tensor:
    """Tokens of a tree's nodes `[B, T]`: a first child goes on in its parent's lane, the next in the lanes after it."""
    _, count, depth = lanes_BLG.shape
    lane_BT = (links.ancestor_BWW * links.rank_BW.unsqueeze(1)).sum(2)[:, 1:].clamp(max=count - 1)
    step_BT = (links.depth_BW[:, 1:] - 1).clamp(max=depth - 1)
    return lanes_BLG.flatten(1).gather(1, lane_BT * depth + step_BT)
