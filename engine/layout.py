"""Packing: the tokens that a step verifies, row after row without gaps, from lengths only the device knows.

Shapes: B batch bucket, N packed tokens (static; the surplus goes to trash), W = γ + 1.
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

    verified_B: Tensor  # draft tokens verified per row
    row_N: Tensor
    offset_N: Tensor  # 0 is the root, k the k-th draft token
    grid_BW: Tensor
    place_N: Tensor  # where a packed token stands on the flattened grid


def pack(state: RowState, batch: int, gamma: int, tokens: int) -> PackedLayout:
    """Lay out `min(γ, available) + 1` tokens for every live row of the first `batch`."""
    device = state.lens_R.device
    verified_B = state.available(batch).clamp(max=gamma)
    width_B = (verified_B + 1) * state.live_R[:batch]
    end_B = width_B.cumsum(0)
    start_B = end_B - width_B
    index_N = torch.arange(tokens, device=device)
    bucket_N = torch.searchsorted(end_B, index_N, right=True)
    clamped_N = bucket_N.clamp(max=batch - 1)
    offset_N = torch.where(bucket_N < batch, index_N - start_B.index_select(0, clamped_N), 0)
    row_N = torch.where(bucket_N < batch, bucket_N, state.rows)
    step_W = torch.arange(gamma + 1, device=device)
    within_BW = torch.minimum(step_W, (width_B - 1).clamp(min=0).unsqueeze(1))
    grid_BW = (start_B.unsqueeze(1) + within_BW).clamp(max=tokens - 1)
    return PackedLayout(verified_B, row_N, offset_N, grid_BW, clamped_N * (gamma + 1) + offset_N)
