"""Drafting by copying: what followed the last time the newest tokens occurred (prompt lookup decoding, Saxena 2023).

The place is found through hash tables, so that the cost does not depend on how long the text is.

Shapes: B batch bucket, M largest γ, K longest match, C candidates, T = window + 1 places, U = T + K - 1, W chunk.
Of a tree: C context bucket, G = depth, L lanes, P = depth + 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from adaptive.contract import DrafterCaps
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import GrowKey
from engine.drafters.branches import lanes, match_lengths, spread
from engine.drafters.ngram_index import ABSENT, NgramIndex, longest, table_bytes
from engine.drafters.output_pool import BEFORE, OutputPool, pool_bytes
from engine.graphs import Write
from engine.tree import TreeState

MIN_MATCH, MAX_MATCH = 2, 8


class NgramDrafter:
    """The longest match of the newest tokens in the row's own history, the most recent of equals.

    A match counts from `min_match` tokens; beyond `max_match` longer is not better. Where the continuation runs into
    the present it starts over, so that a text with a period is continued for as long as asked. The few index entries
    that others overwrite (`cells`) may make a match shorter or older; they never make one up.

    With `span_outputs` the outputs of ended requests are searched as well, and copied where the match is longer.

    `propose` takes in the newest `window` tokens by itself; the host sees to those before (`engine.index_upkeep`).
    """

    name = "ngram"

    def __init__(
        self,
        config: EngineConfig,
        *,
        min_match: int = MIN_MATCH,
        max_match: int = MAX_MATCH,
        span_outputs: bool = False,
        cells: int | None = None,
    ) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"min_match={min_match} and max_match={max_match} must satisfy 1 <= min <= max")
        device = config.device
        self.caps = DrafterCaps("ngram", config.max_gamma, signals=frozenset({"match_len", "target_entropy"}))
        self.window = config.max_gamma + 1
        self.index = NgramIndex(config.max_batch, config.context_len, min_match, max_match, device, cells)
        self.pool = OutputPool(config, min_match, max_match, cells) if span_outputs else None
        self.chunk_2 = torch.zeros(2, dtype=torch.int64, device=device)
        self._back_U = torch.arange(self.window + max_match, device=device)
        self._step_M = torch.arange(config.max_gamma, device=device)

    @property
    def when(self) -> Literal["ahead"]:
        return "ahead"

    def admit(self, write: Write, row: int) -> None:
        """Another request takes the row: forget what the one before it said."""
        write(self.index.ends_RX[row], ABSENT)

    def aim(self, write: Write, row: int, start: int) -> None:
        """Where the next `take_in` begins."""
        write(self.chunk_2, (row, start))

    def take_in(self, state: RowState, width: int) -> None:
        """Index `width` tokens of a row, never the newest one, which is what is looked up."""
        row, start = self.chunk_2.unbind()
        row_1 = row.unsqueeze(0)
        back_U = torch.arange(width + self.index.max_match - 1, device=row.device)
        place_U = start + width - 1 - back_U
        inside_U = place_U.clamp(min=0, max=state.capacity - 1)
        tokens_1U = state.history_RP.view(-1)[row * state.capacity + inside_U].unsqueeze(0)
        cells_1WSH = self.index.cells(tokens_1U, self.index.first_R1SH.index_select(0, row_1))
        end_W = place_U[:width]
        end_W = torch.where(end_W < state.lens_R.index_select(0, row_1) - 1, end_W, ABSENT)
        self.index.insert(cells_1WSH, end_W.unsqueeze(0))

    def propose(self, state: RowState, batch: int) -> None:
        index, max_match, max_gamma = self.index, self.index.max_match, self._step_M.shape[0]
        history_BP = state.history_RP[:batch]
        place_BU = state.lens_R[:batch].unsqueeze(1) - 1 - self._back_U
        tokens_BU = history_BP.gather(1, place_BU.clamp(min=0))
        cells_BTSH = index.cells(tokens_BU, index.first_R1SH[:batch])
        index.insert(cells_BTSH[:, 1:], place_BU[:, 1 : self.window + 1])
        newest_B1, newest_BK = place_BU[:, :1], tokens_BU[:, :max_match]
        run_B1, end_B1 = self._match(history_BP, newest_B1, newest_BK, index.look_up(cells_BTSH))
        source_BM = end_B1 + 1 + self._step_M % (newest_B1 - end_B1).clamp(min=1)
        drafts_BM = history_BP.gather(1, source_BM)
        count_B1 = (run_B1 >= index.min_match) * max_gamma
        if self.pool is not None:
            newest_BK = torch.where(place_BU[:, :max_match] >= 0, newest_BK, BEFORE)
            theirs_BM, their_count_B1, their_run_B1 = self.pool.propose(newest_BK)
            longer_B1 = their_run_B1 > run_B1.clamp(min=index.min_match - 1)
            drafts_BM = torch.where(longer_B1, theirs_BM, drafts_BM)
            count_B1 = torch.where(longer_B1, their_count_B1, count_B1)
            run_B1 = torch.where(longer_B1, their_run_B1, run_B1)
        state.drafts_RM[:batch].copy_(drafts_BM)
        state.draft_lens_R[:batch].copy_(count_B1.squeeze(1))
        state.match_lens_R[:batch].copy_((run_B1 * (count_B1 > 0)).squeeze(1))

    def grow(self, state: RowState, tree: TreeState, key: GrowKey, level: int) -> None:
        """Branches that begin differently: what was proposed ahead, then after the next best matches of the row's own
        text, which are found by reading all of it.
        """
        links = tree.plant(state, key.batch, key.tree, state.capacity)
        history_BC = state.history_RP[: key.batch, : key.context]
        lens_B1 = state.lens_R[: key.batch].unsqueeze(1).clamp(max=key.context)  # rows that do not decode may be longer
        chain_BG = state.drafts_RM[: key.batch, : key.tree.depth]
        run_BC = match_lengths(history_BC, lens_B1, self.index.max_match)
        lanes_BLG = lanes(history_BC, lens_B1, run_BC, chain_BG, key.tree.children)
        tree.tokens_RT[: key.batch, : key.tree.nodes].copy_(spread(lanes_BLG, links))

    def keep_path(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
        """Nothing is cached."""

    def _match(
        self, history_BP: Tensor, newest_B1: Tensor, newest_BK: Tensor, ends_BC: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of the candidates, each compared with the history itself: length and end `[B, 1]` each."""
        ends_BC = torch.where(ends_BC < newest_B1, ends_BC, ABSENT)
        place_BCK = ends_BC.unsqueeze(2) - self.index.back_K
        found_BCK = history_BP.gather(1, place_BCK.clamp(min=0).flatten(1)).view(place_BCK.shape)
        same_BCK = (found_BCK == newest_BK.unsqueeze(1)) & (place_BCK >= 0)
        return longest(self.index.runs(same_BCK), ends_BC)


def index_bytes(config: EngineConfig, *, span_outputs: bool = False) -> int:
    """Memory of a drafter with the usual match lengths."""
    own = table_bytes(config.max_batch, config.context_len, MIN_MATCH, MAX_MATCH)
    return own + (pool_bytes(config, MIN_MATCH, MAX_MATCH) if span_outputs else 0)
