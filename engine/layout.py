"""Packing: the tokens that a forward pass takes, row after row without gaps, from lengths only the device knows.

Shapes: B batch bucket, N packed tokens (static; the surplus goes to trash), W most tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import RowState


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where each packed token belongs. `row_N` is the trash row for padding.

    `grid_BW[b, w]` is the packed index of row b's token w; past a row's length it repeats the row's last token.
    """

    verified_B: Tensor  # tokens per row after its first: in a verify pass its draft tokens
    row_N: Tensor
    offset_N: Tensor  # a token's place within its row
    grid_BW: Tensor
    place_N: Tensor  # where a packed token stands on the flattened grid


def pack(state: RowState, batch: int, gamma: int, tokens: int) -> PackedLayout:
    """Lay out the root and the draft tokens to verify (`verify_lens_R`) of every live row of the first `batch`."""
    count_B = (state.verify_lens_R[:batch] + 1) * state.live_R[:batch]
    return lay_out(count_B, gamma + 1, tokens, state.rows)


def lay_out(count_B: Tensor, width: int, tokens: int, trash_row: int) -> PackedLayout:
    """Pack `count_B[b]` ≤ `width` tokens of every row b, in all at most `tokens`."""
    device, batch = count_B.device, count_B.shape[0]
    end_B = count_B.cumsum(0)
    start_B = end_B - count_B
    index_N = torch.arange(tokens, device=device)
    bucket_N = torch.searchsorted(end_B, index_N, right=True)
    clamped_N = bucket_N.clamp(max=batch - 1)
    offset_N = torch.where(bucket_N < batch, index_N - start_B.index_select(0, clamped_N), 0)
    row_N = torch.where(bucket_N < batch, bucket_N, trash_row)
    step_W = torch.arange(width, device=device)
    after_B = (count_B - 1).clamp(min=0)
    within_BW = torch.minimum(step_W, after_B.unsqueeze(1))
    grid_BW = (start_B.unsqueeze(1) + within_BW).clamp(max=tokens - 1)
    return PackedLayout(after_B, row_N, offset_N, grid_BW, clamped_N * width + offset_N)
