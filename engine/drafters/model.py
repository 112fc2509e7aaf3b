"""Drafting with a second, smaller model that speaks the same tokens (Leviathan et al. 2023).

Shapes: B batch bucket, N packed tokens, W most tokens per row, M largest γ, V the target's vocabulary, E hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptive.contract import DrafterCaps
from engine.attention import PackedAttention, causal_mask, tree_mask
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import CatchUpKey, DraftKey, GrowKey
from engine.drafters.growth import hang, inner_nodes
from engine.kv import KVCache
from engine.layout import PackedLayout, lay_out
from engine.models.decoder import Decoder
from engine.sampling.distribution import Sampler, choose, distribution
from engine.sampling.randomness import DRAFT, uniform
from engine.tree import TreeState
from engine.tree_links import TreeLinks


class ModelDrafter:
    """A decoder that drafts for another. Rows are the target's, keys and values its own.

    Greedy rows draft its most likely token; sampled rows draw from its distribution at the row's own temperature,
    top-k and top-p, which is kept for verification. Vocabularies may differ in padding at the end: ids that one of the
    two models lacks are never drafted.
    """

    name = "model"

    def __init__(self, decoder: Decoder, config: EngineConfig, vocab_size: int, *, same_tokenizer: bool) -> None:
        """`vocab_size` is the target's. ValueError unless both models have the same tokenizer."""
        own = decoder.config.vocab_size
        if not same_tokenizer:
            raise ValueError(
                f"the draft model (vocabulary of {own}) and the model (vocabulary of {vocab_size}) have different "
                "tokenizers: choose a draft model of the same family"
            )
        self.caps = DrafterCaps("lm", config.max_gamma)
        self.limit = min(config.context_len, decoder.config.context_len)
        self.kv = KVCache.allocate(decoder.config, config.max_batch, self.limit, decoder.dtype, config.device)
        probs_dtype = torch.float64 if decoder.dtype == torch.float64 else torch.float32
        shape = (config.max_batch, config.max_gamma, vocab_size)
        self.q_RMV = torch.zeros(shape, dtype=probs_dtype, device=config.device)
        self._decoder = decoder

    @property
    def when(self) -> Literal["before"]:
        return "before"

    def catch_up(self, state: RowState, key: CatchUpKey) -> None:
        lacking_B = state.lens_R[: key.batch] - 1 - state.cached_R[: key.batch]
        count_B = lacking_B.clamp(min=0, max=key.width) * self._drafting(state, key.batch)
        self._feed(state, lay_out(count_B, key.width, key.tokens, state.rows), key.context)
        state.cached_R[: key.batch] += count_B

    def draft(self, state: RowState, key: DraftKey, position: int) -> None:
        hidden_BE = self._first(state, key) if position == 0 else self._next(state, key, position)
        logits_BV = self._decoder.logits(hidden_BE)[:, : self.q_RMV.shape[-1]].to(self.q_RMV.dtype)
        logits_BV = F.pad(logits_BV, (0, self.q_RMV.shape[-1] - logits_BV.shape[-1]), value=float("-inf"))
        if key.sampler is Sampler.GREEDY:
            token_B = logits_BV.argmax(-1)
        else:
            token_B = self._sample(state, key, position, logits_BV)
        state.drafts_RM[: key.batch, position].copy_(token_B)

    def grow(self, state: RowState, tree: TreeState, key: GrowKey, level: int) -> None:
        """The most likely tokens after each node of the level, at any temperature: q is one-hot on each of them."""
        batch = key.batch
        if level == 0:
            hidden_NE = self._first(state, DraftKey(batch, key.context))
            links = tree.plant(state, batch, key.tree, self.limit)
            inner_BI = torch.zeros((batch, 1), dtype=torch.int64, device=hidden_NE.device)
        else:
            links = tree.links(batch, key.tree)
            inner_BI = inner_nodes(links, level, key.tree.inner[level - 1])
            hidden_NE = self._inner(state, tree, key, links, inner_BI, level)
        logits_NV = self._decoder.logits(hidden_NE)[:, : self.q_RMV.shape[-1]]
        hang(tree, links, inner_BI, logits_NV.view(*inner_BI.shape, -1))

    def keep(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
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
        inside_BI = (self._drafting(state, batch) > 0).unsqueeze(1) & (place_BI < self.limit)
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

    def _drafting(self, state: RowState, batch: int) -> Tensor:
        """1 for the rows that draft: live, not opted out or at their last token, within this model's context `[B]`."""
        willing_B = (state.draft_cap_R[:batch] > 0) & (state.budget_R[:batch] > 1)
        willing_B = willing_B & (state.lens_R[:batch] <= self.limit)
        return state.live_R[:batch] * willing_B

    def _first(self, state: RowState, key: DraftKey) -> Tensor:
        """The newest token, and the one before it where all of the last round's draft tokens stood `[B, E]`."""
        batch, lens_B = key.batch, state.lens_R[: key.batch]
        drafting_B = self._drafting(state, batch)
        cached_B = state.cached_R[:batch]
        layout = lay_out((lens_B - cached_B).clamp(max=2) * drafting_B, 2, 2 * batch, state.rows)
        hidden_NE = self._feed(state, layout, key.context)
        cached_B.copy_(torch.where(drafting_B > 0, lens_B, cached_B))
        # Token k is drafted from position lens - 2 + k, the last of which is limit - 1.
        state.draft_lens_R[:batch].copy_((self.limit + 1 - lens_B).clamp(0, state.max_gamma) * drafting_B)
        return hidden_NE.index_select(0, layout.grid_BW[:, -1])

    def _next(self, state: RowState, key: DraftKey, position: int) -> Tensor:
        """The draft token before `position` `[B, E]`."""
        batch = key.batch
        row_B = torch.arange(batch, device=state.lens_R.device)
        place_B = state.lens_R[:batch] - 1 + position
        inside_B = (self._drafting(state, batch) > 0) & (place_B < self.limit)
        slot_B = torch.where(inside_B, row_B * self.limit + place_B, self.kv.trash_slot)
        cached_B = state.cached_R[:batch]
        cached_B.copy_(torch.where(inside_B, place_B + 1, cached_B))
        tokens_B = state.drafts_RM[:batch, position - 1]
        place_B = place_B.clamp(max=self.limit - 1)
        return self._forward(tokens_B, place_B, slot_B, row_B.unsqueeze(1), row_B, key.context)

    def _feed(self, state: RowState, layout: PackedLayout, context: int) -> Tensor:
        """Tokens of the rows' history from `cached_R` on `[N, E]`."""
        row_N = layout.row_N
        place_N = (state.cached_R.index_select(0, row_N) + layout.offset_N).clamp(max=self.limit - 1)
        slot_N = torch.where(row_N < state.rows, row_N * self.limit + place_N, self.kv.trash_slot)
        tokens_N = state.history_RP[row_N, place_N]
        return self._forward(tokens_N, place_N, slot_N, layout.grid_BW, layout.place_N, context)

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

    def _sample(self, state: RowState, key: DraftKey, position: int, logits_BV: Tensor) -> Tensor:
        settings = (state.temperature_R, state.top_k_R, state.top_p_R)
        temperature_B, top_k_B, top_p_B = (buffer[: key.batch] for buffer in settings)
        filtered = key.sampler is Sampler.FILTERED
        q_BV = distribution(logits_BV, temperature_B, top_k_B, top_p_B, filtered=filtered)
        self.q_RMV[: key.batch, position].copy_(q_BV)
        seeds_B, steps_B = state.seeds_R[: key.batch], state.steps_R[: key.batch]
        return choose(q_BV, uniform(seeds_B, steps_B, torch.full_like(seeds_B, position), DRAFT))
