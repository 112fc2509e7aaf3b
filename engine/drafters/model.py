"""Drafting with a second, smaller model that speaks the same tokens (Leviathan et al. 2023).

Shapes: B batch bucket, N packed tokens, W most tokens per row, V the target's vocabulary, D the draft vocabulary, E
hidden size, I nodes with children on a level, P = depth + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention import PackedAttention, causal_mask, tree_mask
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import DraftKey, GrowKey
from engine.drafters.growth import hang, inner_nodes
from engine.drafters.stepwise import CachedDrafter
from engine.kv import KVCache
from engine.layout import PackedLayout
from engine.models.decoder import Decoder
from engine.tree import TreeState
from engine.tree_links import TreeLinks


class ModelDrafter(CachedDrafter):
    """A decoder that drafts for another. Rows are the target's, keys and values its own.

    Vocabularies may differ in padding at the end: ids that one of the two models lacks are never drafted.
    """

    name = "model"
    reach = 2  # the newest token, and the one before it where all of the last round's draft tokens stood
    keeps_drafts = True

    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        vocab_size: int,
        *,
        same_tokenizer: bool,
        ids_D: Tensor | None = None,
    ) -> None:
        """`vocab_size` is the target's; `ids_D` its ids of the decoder's tokens, where the head is but a slice.

        ValueError unless both models have the same tokenizer.
        """
        own = decoder.config.vocab_size
        if not same_tokenizer:
            raise ValueError(
                f"the draft model (vocabulary of {own}) and the model (vocabulary of {vocab_size}) have different "
                "tokenizers: choose a draft model of the same family"
            )
        limit = min(config.context_len, decoder.config.context_len)
        super().__init__(config, "lm", config.max_gamma, limit, vocab_size, decoder.dtype)
        self.kv = KVCache.allocate(decoder.config, config.max_batch, self.limit, decoder.dtype, config.device)
        self.ids_D = ids_D
        self._decoder = decoder

    def feed(self, state: RowState, layout: PackedLayout, context: int) -> Tensor:
        row_N = layout.row_N
        place_N = (state.cached_R.index_select(0, row_N) + layout.offset_N).clamp(max=self.limit - 1)
        slot_N = torch.where(row_N < state.rows, row_N * self.limit + place_N, self.kv.trash_slot)
        tokens_N = state.history_RP[row_N, place_N]
        return self._forward(tokens_N, place_N, slot_N, layout.grid_BW, layout.place_N, context)

    def copy_prefix(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> None:
        self.kv.copy_prefix(source, target, count, min(context, self.limit))

    def grow(self, state: RowState, tree: TreeState, key: GrowKey, level: int) -> None:
        """The most likely tokens after each node of the level, at any temperature: q is one-hot on each of them."""
        batch = key.batch
        if level == 0:
            hidden_NE = self._first(state, DraftKey(batch, key.context), self.drafting(state, batch))
            links = tree.plant(state, batch, key.tree, self.limit)
            inner_BI = torch.zeros((batch, 1), dtype=torch.int64, device=hidden_NE.device)
        else:
            links = tree.links(batch, key.tree)
            inner_BI = inner_nodes(links, level, key.tree.inner[level - 1])
            hidden_NE = self._inner(state, tree, key, links, inner_BI, level)
        hang(tree, links, inner_BI, self._known_logits(hidden_NE).view(*inner_BI.shape, -1), self.ids_D)

    def keep_path(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
        """The last node that stands may be a leaf, which was never read: it stays lacking, as the root's successor."""
        read_B = (accepted_B - 1).clamp(min=0)
        self.kv.move_path(state.lens_R[: len(read_B)] - 1, path_BP, read_B)
        state.cached_R[: len(read_B)] += read_B

    def _inner(
        self, state: RowState, tree: TreeState, key: GrowKey, links: TreeLinks, inner_BI: Tensor, level: int
    ) -> Tensor:
        """Nodes with children, all of one depth `[B · I, E]`."""
        batch, config = key.batch, self._decoder.config
        row_B = torch.arange(batch, device=inner_BI.device)
        root_B = state.lens_R[:batch] - 1
        place_BI = root_B.unsqueeze(1) + inner_BI
        inside_BI = (self.drafting(state, batch) > 0).unsqueeze(1) & (place_BI < self.limit)
        inside_BI = inside_BI & (inner_BI <= tree.counts_R[:batch].unsqueeze(1))
        slot_BI = torch.where(inside_BI, row_B.unsqueeze(1) * self.limit + place_BI, self.kv.trash_slot)
        position_BI = (root_B + level).clamp(max=self.limit - 1).unsqueeze(1).expand_as(inner_BI)
        mask = tree_mask(
            root_B,
            inner_BI,
            links,
            min(key.context, self.limit),
            config.sliding_window,
            config.num_heads // config.num_kv_heads,
            self._decoder.dtype,
        )
        index_N = torch.arange(inner_BI.numel(), device=inner_BI.device)
        attention = PackedAttention(self.kv, slot_BI.flatten(), index_N.view_as(inner_BI), index_N, mask)
        tokens_N = tree.tokens_RT[:batch].gather(1, (inner_BI - 1).clamp(min=0)).flatten()
        known_N = tokens_N.clamp(max=config.vocab_size - 1)
        return self._decoder.forward(known_N, position_BI.flatten(), attention)

    def follow(self, state: RowState, key: DraftKey, position: int) -> Tensor:
        batch = key.batch
        row_B = torch.arange(batch, device=state.lens_R.device)
        place_B = state.lens_R[:batch] - 1 + position
        inside_B = (state.draft_lens_R[:batch] > 0) & (place_B < self.limit)
        slot_B = torch.where(inside_B, row_B * self.limit + place_B, self.kv.trash_slot)
        cached_B = state.cached_R[:batch]
        cached_B.copy_(torch.where(inside_B, place_B + 1, cached_B))
        tokens_B = state.drafts_RM[:batch, position - 1]
        place_B = place_B.clamp(max=self.limit - 1)
        return self._forward(tokens_B, place_B, slot_B, row_B.unsqueeze(1), row_B, key.context)

    def _forward(
        self, tokens_N: Tensor, positions_N: Tensor, slots_N: Tensor, grid_BW: Tensor, place_N: Tensor, context: int
    ) -> Tensor:
        config = self._decoder.config
        mask = causal_mask(
            positions_N[grid_BW],
            min(context, self.limit),
            config.sliding_window,
            config.num_heads // config.num_kv_heads,
            self._decoder.dtype,
        )
        attention = PackedAttention(self.kv, slots_N, grid_BW, place_N, mask)
        known_N = tokens_N.clamp(max=config.vocab_size - 1)  # padding of the target's vocabulary that this model lacks
        return self._decoder.forward(known_N, positions_N, attention)

    def logits(self, hidden_BE: Tensor, position: int) -> Tensor:
        logits_BD = self._known_logits(hidden_BE)
        if self.ids_D is not None:
            return logits_BD
        logits_BV = logits_BD.to(self.q_RMV.dtype)
        return F.pad(logits_BV, (0, self.q_RMV.shape[-1] - logits_BV.shape[-1]), value=float("-inf"))

    def _known_logits(self, hidden_NE: Tensor) -> Tensor:
        """Over the draft vocabulary, or over what both models' vocabularies have `[N, D]`."""
        return self._decoder.logits(hidden_NE)[:, : self.q_RMV.shape[-1]]
