"""What drafters that draft before verification share: who drafts, how a token is drawn, how a cache follows its rows.

Shapes: B batch bucket, N packed tokens, W most tokens per row, M largest γ, V the target's vocabulary, D the draft
vocabulary, E hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import Literal

import torch
from torch import Tensor

from adaptive.contract import DRAFT_SIGNALS, TARGET_SIGNALS, DrafterCaps, DrafterKind, Signal
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import CatchUpKey, DraftKey
from engine.features import Features
from engine.layout import PackedLayout, lay_out
from engine.sampling.distribution import Sampler, choose, distribution
from engine.sampling.randomness import DRAFT, uniform
from engine.signals import note_draft


class DraftsBefore:
    """Draws tokens and keeps what they were drawn from.

    Greedy rows draft the most likely token; sampled rows draw at the row's own temperature, top-k and top-p. With
    `ids_D`, logits are those of a draft vocabulary, whose token i is the target's `ids_D[i]`; q is 0 outside of it.
    """

    features: Features | None = None
    reach: int
    least = 1
    ids_D: Tensor | None = None

    def __init__(
        self, config: EngineConfig, kind: DrafterKind, max_gamma: int, limit: int, vocab_size: int, dtype: torch.dtype
    ) -> None:
        """`vocab_size` is the target's, `dtype` the weights'."""
        self.caps = DrafterCaps(kind, max_gamma, signals=frozenset((*DRAFT_SIGNALS, *TARGET_SIGNALS)))
        self.limit = limit
        probs_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        shape = (config.max_batch, max_gamma, vocab_size)
        self.q_RMV = torch.zeros(shape, dtype=probs_dtype, device=config.device)
        self.plain_RMV: Tensor | None = None

    @property
    def when(self) -> Literal["before"]:
        return "before"

    def prepare(self, signals: Set[Signal]) -> None:
        """Allocate what these signals take."""
        if "js" in signals and self.plain_RMV is None:
            self.plain_RMV = torch.zeros_like(self.q_RMV)

    def drafting(self, state: RowState, batch: int) -> Tensor:
        """1 for the rows that draft: live, not opted out or at their last token, of a length that it can do `[B]`."""
        lens_B = state.lens_R[:batch]
        willing_B = (state.draft_cap_R[:batch] > 0) & (state.budget_R[:batch] > 1)
        willing_B = willing_B & (lens_B >= self.least) & (lens_B <= self.limit)
        return state.live_R[:batch] * willing_B

    def set_lens(self, state: RowState, drafting_B: Tensor) -> None:
        """How many tokens each row can draft. Token k follows from place lens - 1 + k, the last of which is limit."""
        batch = drafting_B.shape[0]
        room_B = (self.limit + 1 - state.lens_R[:batch]).clamp(0, state.max_gamma)
        state.draft_lens_R[:batch].copy_(room_B * drafting_B)

    def draw(self, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> None:
        """Write the draft token of `position`."""
        logits_BD = logits_BD.to(self.q_RMV.dtype)
        if key.signals:
            self._signal(state, key, position, logits_BD)
        if key.sampler is Sampler.GREEDY:
            token_B = logits_BD.argmax(-1)
        else:
            token_B = self._sample(state, key, position, logits_BD)
        if self.ids_D is not None:
            token_B = self.ids_D.index_select(0, token_B)
        state.drafts_RM[: key.batch, position].copy_(token_B)

    def _signal(self, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> None:
        probs_BD = logits_BD.softmax(-1)
        if "js" in key.signals and self.plain_RMV is not None:
            self._spread(self.plain_RMV[: key.batch, position], probs_BD)
        note_draft(state, key.batch, position, key.signals, probs_BD)

    def _spread(self, probs_BV: Tensor, probs_BD: Tensor) -> None:
        """From the draft vocabulary to the target's."""
        if self.ids_D is None:
            probs_BV.copy_(probs_BD)
        else:  # nothing else is ever written: zero outside stays zero
            probs_BV.index_copy_(1, self.ids_D, probs_BD)

    def _sample(self, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> Tensor:
        settings = (state.temperature_R, state.top_k_R, state.top_p_R)
        temperature_B, top_k_B, top_p_B = (buffer[: key.batch] for buffer in settings)
        filtered = key.sampler is Sampler.FILTERED
        q_BD = distribution(logits_BD, temperature_B, top_k_B, top_p_B, filtered=filtered)
        self._spread(self.q_RMV[: key.batch, position], q_BD)
        seeds_B, steps_B = state.seeds_R[: key.batch], state.steps_R[: key.batch]
        return choose(q_BD, uniform(seeds_B, steps_B, torch.full_like(seeds_B, position), DRAFT))


class CachedDrafter(DraftsBefore, ABC):
    """Drafts token by token, from a cache that takes the rows' tokens in order."""

    at_once = False

    def catch_up(self, state: RowState, key: CatchUpKey) -> None:
        lacking_B = state.lens_R[: key.batch] - 1 - state.cached_R[: key.batch]
        count_B = lacking_B.clamp(min=0, max=key.width) * self.drafting(state, key.batch)
        self.feed(state, lay_out(count_B, key.width, key.tokens, state.rows), key.context)
        state.cached_R[: key.batch] += count_B

    def draft(self, state: RowState, key: DraftKey, position: int) -> None:
        if position == 0:
            hidden_BE = self._first(state, key, self.drafting(state, key.batch))
        else:
            hidden_BE = self.follow(state, key, position)
        self.draw(state, key, position, self.logits(hidden_BE, position))
        self.keep(state, key, position, hidden_BE)

    def _first(self, state: RowState, key: DraftKey, drafting_B: Tensor) -> Tensor:
        """Takes the newest token of each row, and those before it that the cache lacks `[B, E]`."""
        lens_B, cached_B = state.lens_R[: key.batch], state.cached_R[: key.batch]
        width = key.width or self.reach
        count_B = (lens_B - cached_B).clamp(max=width) * drafting_B
        layout = lay_out(count_B, width, key.tokens or width * key.batch, state.rows)
        hidden_NE = self.feed(state, layout, key.context)
        cached_B.copy_(torch.where(drafting_B > 0, lens_B, cached_B))
        self.set_lens(state, drafting_B)
        return hidden_NE.index_select(0, layout.grid_BW[:, -1])

    @abstractmethod
    def feed(self, state: RowState, layout: PackedLayout, context: int) -> Tensor:
        """Take tokens of the rows' history from `cached_R` on `[N, E]`."""

    @abstractmethod
    def follow(self, state: RowState, key: DraftKey, position: int) -> Tensor:
        """Take the draft token before `position` in the rows that have a draft length `[B, E]`."""

    def keep(self, state: RowState, key: DraftKey, position: int, hidden_BE: Tensor) -> None:
        """Leave what the next piece needs, besides the cache and the draft token."""

    @abstractmethod
    def logits(self, hidden_BE: Tensor, position: int) -> Tensor:
        """Over the draft vocabulary `[B, D]`."""
