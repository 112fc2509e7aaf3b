"""Drafting by copying: what followed the last time the newest tokens occurred (prompt lookup decoding, Saxena 2023).

Shapes: B batch bucket, C context bucket, M largest γ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptive.contract import DrafterCaps
from engine.batch import RowState
from engine.drafters.base import GrowKey
from engine.drafters.branches import lanes, spread
from engine.tree import TreeState


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """The longest match of the newest tokens in the row's own history, the most recent of equals.

    A match counts from `min_match` tokens; beyond `max_match` longer is not better. Where the continuation runs into
    the present it starts over, so that a text with a period is continued for as long as asked.
    """

    max_gamma: int
    min_match: int = 2
    max_match: int = 8
    name: str = "ngram"

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match={self.min_match} and max_match={self.max_match} must satisfy 1 <= min <= max")

    @property
    def when(self) -> Literal["ahead"]:
        return "ahead"

    @property
    def caps(self) -> DrafterCaps:
        return DrafterCaps("ngram", self.max_gamma, signals=frozenset({"match_len"}))

    def propose(self, state: RowState, batch: int, context: int) -> None:
        history_BC = state.history_RP[:batch, :context]
        lens_B1 = state.lens_R[:batch].unsqueeze(1).clamp(max=context)  # rows that do not decode may be longer
        run_BC = self._match_lengths(history_BC, lens_B1)
        index_C = torch.arange(context, device=history_BC.device)
        past_BC = torch.where(index_C < lens_B1 - 1, run_BC, 0)  # the newest token matches itself
        match_B1, end_B1 = (past_BC * context + index_C).max(1, keepdim=True)
        match_B1 = match_B1 // context
        step_M = torch.arange(state.max_gamma, device=history_BC.device)
        period_B1 = (lens_B1 - 1 - end_B1).clamp(min=1)
        source_BM = (end_B1 + 1 + step_M % period_B1).clamp(max=context - 1)
        state.drafts_RM[:batch].copy_(history_BC.gather(1, source_BM))
        matched_B1 = match_B1 >= self.min_match
        state.draft_lens_R[:batch].copy_((matched_B1 * state.max_gamma).squeeze(1))
        state.match_lens_R[:batch].copy_((matched_B1 * match_B1).squeeze(1))

    def grow(self, state: RowState, tree: TreeState, key: GrowKey, level: int) -> None:
        """Branches that begin differently, from what was proposed ahead and the next best matches."""
        links = tree.plant(state, key.batch, key.tree, state.capacity)
        history_BC = state.history_RP[: key.batch, : key.context]
        lens_B1 = state.lens_R[: key.batch].unsqueeze(1).clamp(max=key.context)
        chain_BG = state.drafts_RM[: key.batch, : key.tree.depth]
        run_BC = self._match_lengths(history_BC, lens_B1)
        lanes_BLG = lanes(history_BC, lens_B1, run_BC, chain_BG, key.tree.children)
        tree.tokens_RT[: key.batch, : key.tree.nodes].copy_(spread(lanes_BLG, links))

    def keep(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
        """Nothing is cached."""

    def _match_lengths(self, history_BC: Tensor, lens_B1: Tensor) -> Tensor:
        """How many tokens ending at each place equal the newest ones, up to `max_match` `[B, C]`."""
        run_BC = torch.zeros_like(history_BC)
        equal_BC = torch.ones_like(history_BC, dtype=torch.bool)
        for back in range(min(self.max_match, history_BC.shape[1])):
            token_B1 = history_BC.gather(1, (lens_B1 - 1 - back).clamp(min=0))
            same_BC = history_BC == token_B1
            equal_BC = equal_BC & F.pad(same_BC[:, : same_BC.shape[1] - back], (back, 0))
            run_BC = run_BC + equal_BC
        return run_BC
