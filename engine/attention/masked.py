"""Masked attention over static-shape rows.

The tokens of a step are packed for the matrix products; attention alone runs on a padded `[B, W]` grid, or on a CPU
row by row. Query heads of one group are folded into the token axis, so that keys and values are read once and never
repeated.

Shapes: N packed tokens, B batch bucket, W tokens per row of the grid, C context bucket, H query heads, K key/value
heads, G = H / K, D head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention import ragged
from engine.kv import KVCache


class Attention(Protocol):
    """Writes a layer's new keys and values, then lets every token see its row's past."""

    def __call__(self, layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Returns `[N, H · D]`."""


def causal_mask(positions_BW: Tensor, context: int, window: int | None, groups: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, 1, W · G, C]`: 0 where key position ≤ token position (and within the window), else -inf."""
    key_C = torch.arange(context, device=positions_BW.device)
    distance_BWC = positions_BW.unsqueeze(-1) - key_C
    hidden_BWC = distance_BWC < 0
    if window is not None:
        hidden_BWC = hidden_BWC | (distance_BWC >= window)
    mask_BWC = torch.zeros(hidden_BWC.shape, dtype=dtype, device=key_C.device).masked_fill(hidden_BWC, float("-inf"))
    return repeat_groups(mask_BWC, groups)


def repeat_groups(mask_BWC: Tensor, groups: int) -> Tensor:
    """`[B, W, C]` -> `[B, 1, W · G, C]`."""
    return mask_BWC.unsqueeze(2).expand(-1, -1, groups, -1).flatten(1, 2).unsqueeze(1)


def fold_groups(q_BWHD: Tensor, kv_heads: int) -> Tensor:
    """`[B, W, H, D]` -> `[B, K, W · G, D]`."""
    B, W, H, D = q_BWHD.shape
    return q_BWHD.view(B, W, kv_heads, H // kv_heads, D).transpose(1, 2).reshape(B, kv_heads, -1, D)


def unfold_groups(out_BKXD: Tensor, width: int) -> Tensor:
    """`[B, K, W · G, D]` -> `[B · W, H · D]`."""
    B, K, X, D = out_BKXD.shape
    return out_BKXD.view(B, K, width, X // width, D).transpose(1, 2).reshape(B * width, -1)


class PackedAttention:
    """A decode step: row b's tokens sit at `grid_BW[b]` among the packed ones and read the first `context` positions.

    Grid places past a row's length point at some other token: its output there is computed and never read. No token
    sees a key past the last slot that its row writes. Where the step's data may be looked at, only what rows hold is
    computed, and the output of tokens without a slot in any row is 0.
    """

    def __init__(self, kv: KVCache, slots_N: Tensor, grid_BW: Tensor, place_N: Tensor, mask: Tensor) -> None:
        self.kv = kv
        self.slots_N = slots_N
        self.grid_BW = grid_BW
        self.place_N = place_N  # where on the flattened grid a packed token's output stands
        self.batch, self.width = grid_BW.shape
        self.mask = mask
        self.runs: tuple[ragged.Run, ...] | None = None
        if ragged.may_look(slots_N):
            self.runs = ragged.plan(slots_N, grid_BW, kv.capacity, mask.shape[-1])

    def __call__(self, layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        self.kv.write(layer, self.slots_N, k_NKD, v_NKD)
        keys, values = self.kv.batch(layer, self.batch, self.mask.shape[-1])
        if self.runs is not None:
            return ragged.attend(self.runs, q_NHD, keys, values, self.grid_BW, self.mask)
        q_BWHD = q_NHD.index_select(0, self.grid_BW.flatten()).view(self.batch, self.width, *q_NHD.shape[1:])
        out = F.scaled_dot_product_attention(fold_groups(q_BWHD, keys.shape[1]), keys, values, attn_mask=self.mask)
        return unfold_groups(out, self.width).index_select(0, self.place_N)


class ChunkAttention:
    """A prefill chunk: N consecutive tokens of one row whose number only the device knows."""

    def __init__(self, kv: KVCache, slots_N: Tensor, row_slots_C: Tensor, mask: Tensor) -> None:
        self.kv = kv
        self.slots_N = slots_N
        self.row_slots_C = row_slots_C
        self.mask = mask

    def __call__(self, layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        self.kv.write(layer, self.slots_N, k_NKD, v_NKD)
        keys, values = self.kv.gather(layer, self.row_slots_C)
        q_1KXD = fold_groups(q_NHD.unsqueeze(0), keys.shape[1])
        out = F.scaled_dot_product_attention(q_1KXD, keys, values, attn_mask=self.mask)
        return unfold_groups(out, q_NHD.shape[0])
