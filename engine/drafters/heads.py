"""Drafting with heads trained on the target's hidden states: what EAGLE-1, EAGLE-3 and MTP have in common.

A row of L tokens t_0 ... t_{L-1} has features f_0 ... f_{L-2}: the target has not seen its newest token, the root, yet.
A head reads the pair (f_i, t_{i+1}) at index i, so that the last pair, i = L - 2, predicts the first draft token. For
later ones it reads what it made itself at index i as the feature of index i + 1.

DeepSeek-V3's MTP has several modules. Module k reads (what module k - 1 made at index i, t_{i+k+1}) and predicts
t_{i+k+2}, with keys and values of its own. Draft token k comes from module k; past the last one, that one is chained on
itself. All modules take a token at the same time, module k at an index k lower than module 0.

Guesses are written where true features will stand, and keys and values at drafted places come from them. So nothing of
a draft lasts: the accepted tokens are read again, with true features, when the next draft begins.

Shapes: B batch bucket, N packed tokens, W most tokens per row, S cache slots, E hidden size, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from adaptive.contract import DrafterKind
from engine.attention import Attention, PackedAttention, causal_mask
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import DraftKey
from engine.drafters.stepwise import CachedDrafter
from engine.drafters.vocabulary import DraftVocabulary
from engine.features import Features
from engine.kv import KVCache
from engine.layout import PackedLayout
from engine.models.block import rotary_tables
from engine.models.config import ModelConfig


class Module(Protocol):
    """One block of a trained drafter, with what joins its two inputs."""

    def run(
        self, index: int, embedding_NE: Tensor, feature_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, attend: Attention
    ) -> Tensor:
        """What comes out of the block `[N, E]`; `index` is the module's number, and its place in the cache."""

    def logits(self, hidden_NE: Tensor) -> Tensor:
        """Over the draft vocabulary `[N, D]`."""


class HeadDrafter(CachedDrafter):
    """Chained heads over a cache of features. Slots and capacity are those of the target's cache."""

    least = 2  # before a single token there is no feature
    keeps_drafts = False

    def __init__(
        self,
        name: str,
        kind: DrafterKind,
        modules: Sequence[Module],
        shape: ModelConfig,
        vocabulary: DraftVocabulary,
        features: Features,
        config: EngineConfig,
    ) -> None:
        """`shape` is that of the modules' blocks, with as many layers; its `context_len` is where drafting ends."""
        dtype, limit = vocabulary.embedding_VE.dtype, min(config.context_len, shape.context_len)
        super().__init__(config, kind, config.max_gamma, limit, vocabulary.target_size, dtype)
        self.name = name
        self.reach = config.max_gamma + 1
        self.features = features
        self.ids_D = vocabulary.ids_D
        self.kv = KVCache.allocate(shape, config.max_batch, config.context_len, dtype, config.device)
        self.sources = [features.cache_SE, *[torch.zeros_like(features.cache_SE) for _ in modules[1:]]]
        self._modules = modules
        self._embedding_VE = vocabulary.embedding_VE
        self._groups = shape.num_heads // shape.num_kv_heads
        self._cos, self._sin = rotary_tables(shape, limit, dtype, config.device)

    def feed(self, state: RowState, layout: PackedLayout, context: int) -> Tensor:
        row_N = layout.row_N
        place_N = (state.cached_R.index_select(0, row_N) + layout.offset_N).clamp(max=state.capacity - 1)
        tokens_N = state.history_RP[row_N, place_N]
        return self._take(0, tokens_N, row_N, place_N, layout.grid_BW, layout.place_N, context)

    def copy_prefix(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> None:
        """Copy what the modules made of the first `count` tokens; the target's features are copied with its keys."""
        self.kv.copy_prefix(source, target, count, context)
        from_C, to_C = self.kv.prefix_slots(source, target, count, context)
        for made_SE in self.sources[1:]:
            made_SE.index_copy_(0, to_C, made_SE.index_select(0, from_C))

    def follow(self, state: RowState, key: DraftKey, position: int) -> Tensor:
        row_B = torch.arange(key.batch, device=state.lens_R.device)
        owner_B = self._owners(state, key.batch)
        place_B = state.lens_R[: key.batch] - 1 + position
        tokens_B = state.drafts_RM[: key.batch, position - 1]
        # Modules before the position's own have no feature to read any more.
        return self._take(self._turn(position), tokens_B, owner_B, place_B, row_B.unsqueeze(1), row_B, key.context)

    def keep(self, state: RowState, key: DraftKey, position: int, hidden_BE: Tensor) -> None:
        """What the last module made is its next feature."""
        last = len(self._modules) - 1
        if position >= last:
            index_B = state.lens_R[: key.batch] - 1 + position - last
            self.sources[last].index_copy_(0, self._slots(self._owners(state, key.batch), index_B), hidden_BE)

    def logits(self, hidden_BE: Tensor, position: int) -> Tensor:
        return self._modules[self._turn(position)].logits(hidden_BE)

    def _turn(self, position: int) -> int:
        """The module that a draft token comes from."""
        return min(position, len(self._modules) - 1)

    def _owners(self, state: RowState, batch: int) -> Tensor:
        """Each row's number, or the trash row's for one that does not draft, which has no draft length `[B]`.

        The first piece of a step sets the lengths. A later one that is tried before, to be captured, finds older ones
        and writes past what its rows hold.
        """
        row_B = torch.arange(batch, device=state.lens_R.device)
        return torch.where(state.draft_lens_R[:batch] > 0, row_B, state.rows)

    def _slots(self, row_N: Tensor, index_N: Tensor) -> Tensor:
        inside_N = (row_N < self.kv.rows) & (index_N >= 0) & (index_N < self.limit)
        return torch.where(inside_N, row_N * self.kv.capacity + index_N, self.kv.trash_slot)

    def _take(
        self,
        first: int,
        tokens_N: Tensor,
        row_N: Tensor,
        place_N: Tensor,
        grid_BW: Tensor,
        spot_N: Tensor,
        context: int,
    ) -> Tensor:
        """Modules from `first` on take the tokens at `place_N` of their rows; what the first of them made `[N, E]`.

        `spot_N` is where a packed token stands on the flattened grid.
        """
        embedding_NE = self._embedding_VE.index_select(0, tokens_N)
        made: list[Tensor] = []
        for number, module in enumerate(self._modules[first:], first):
            index_N = place_N - 1 - number
            slot_N, at_N = self._slots(row_N, index_N), index_N.clamp(0, self.limit - 1)
            mask = causal_mask(at_N[grid_BW], min(context, self.limit), None, self._groups, self._cos.dtype)
            hidden_NE = module.run(
                number,
                embedding_NE,
                self.sources[number].index_select(0, slot_N),
                self._cos.index_select(0, at_N),
                self._sin.index_select(0, at_N),
                PackedAttention(self.kv, slot_N, grid_BW, spot_N, mask),
            )
            if number + 1 < len(self._modules):
                self.sources[number + 1].index_copy_(0, slot_N, hidden_NE)
            made.append(hidden_NE)
        return made[0]
