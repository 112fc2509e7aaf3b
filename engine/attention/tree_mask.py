"""What a tree's tokens see: the row's past, and in the tree itself and its ancestors only.

Node i has its key in the slot i + 1 after the root's, and the position of its depth below the root.

Shapes: B batch bucket, X tokens per row of the grid, W nodes + 1, C context bucket, G query heads per group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.masked import repeat_groups
from engine.tree_links import TreeLinks


def tree_mask(
    root_B: Tensor,
    offset_BX: Tensor,
    links: TreeLinks,
    context: int,
    window: int | None,
    groups: int,
    dtype: torch.dtype,
) -> Tensor:
    """Additive mask `[B, 1, X · G, C]` for tokens at `offset_BX` of trees below the positions `root_B`.

    A window counts positions, not slots.
    """
    width, root_B1 = links.up_BW.shape[1], root_B.unsqueeze(1)
    key_C = torch.arange(context, device=root_B.device)
    after_BC = key_C - root_B1
    node_BC = after_BC.clamp(0, width - 1)
    above_BXW = links.ancestor_BWW.gather(1, offset_BX.unsqueeze(2).expand(-1, -1, width))
    above_BXC = above_BXW.gather(2, node_BC.unsqueeze(1).expand(-1, offset_BX.shape[1], -1))
    seen_BXC = above_BXC & (after_BC < width).unsqueeze(1) | (after_BC < 0).unsqueeze(1)
    if window is not None:
        key_position_BC = torch.where(after_BC < 0, key_C, root_B1 + links.depth_BW.gather(1, node_BC))
        position_BX = root_B1 + links.depth_BW.gather(1, offset_BX)
        seen_BXC = seen_BXC & (position_BX.unsqueeze(2) - key_position_BC.unsqueeze(1) < window)
    mask_BXC = torch.zeros(seen_BXC.shape, dtype=dtype, device=key_C.device).masked_fill(~seen_BXC, float("-inf"))
    return repeat_groups(mask_BXC, groups)
