"""Chunked prefill: its own captured step between decode steps.

A chunk is up to T consecutive prompt tokens of one row; it fills the cache and computes no logits, since a prompt's
last token is the root of the row's first decode step. Shapes: T chunk bucket, C context bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import ChunkAttention, causal_mask
from engine.batch import RowState
from engine.features import Features, forward
from engine.graphs import Write
from engine.kv import KVCache
from engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class PrefillKey:
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """`chunk_3` holds the row, its first position and the number of real tokens: device data, not part of the key.

    `features` is what the drafter wants kept.
    """

    decoder: Decoder
    kv: KVCache
    state: RowState
    chunk_3: Tensor
    features: Features | None = None

    def aim(self, write: Write, row: int, start: int, count: int) -> None:
        write(self.chunk_3, (row, start, count))

    def run(self, key: PrefillKey) -> None:
        """Write the keys and values, and the features, of one chunk."""
        device, capacity = self.chunk_3.device, self.state.capacity
        row, start, count = self.chunk_3.unbind()
        index_T = torch.arange(key.tokens, device=device)
        real_T = index_T < count
        position_T = torch.where(real_T, start + index_T, 0)
        slot_T = torch.where(real_T, row * capacity + position_T, self.kv.trash_slot)
        tokens_T = self.state.history_RP.view(-1).index_select(0, row * capacity + position_T)
        row_slot_C = row * capacity + torch.arange(key.context, device=device)
        config = self.decoder.config
        groups = config.num_heads // config.num_kv_heads
        mask = causal_mask(position_T.unsqueeze(0), key.context, config.sliding_window, groups, self.decoder.dtype)
        attention = ChunkAttention(self.kv, slot_T, row_slot_C, mask)
        forward(self.decoder, self.features, tokens_T, position_T, attention)
