"""What ended requests said, to be copied from by later ones: a ring of tokens with an n-gram index of its own.

Places count on for ever; place p is kept at p modulo the ring's size. Each text is followed by `END`, which equals no
token: no match and no draft goes from one text into another, nor past the newest one into what the ring held before.

Shapes: B batch bucket, M largest γ, K longest n-gram, C candidates, J = K + 1, Q ring, W chunk, U = W + K - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.ngram_index import NgramIndex, longest, table_bytes
from engine.graphs import Write

END = -1
BEFORE = -2  # stands for the tokens before a row's first

MOST_TOKENS = 1 << 16


class OutputPool:
    """As many tokens as all rows hold together, `MOST_TOKENS` at most. `chunk_4` says what is copied next."""

    def __init__(self, config: EngineConfig, min_match: int, max_match: int, cells: int | None = None) -> None:
        self.size = pool_tokens(config)
        self.ring_Q = torch.full((self.size + 1,), END, dtype=torch.int64, device=config.device)  # the last is trash
        self.index = NgramIndex(1, self.size, min_match, max_match, config.device, cells)
        self.chunk_4 = torch.zeros(4, dtype=torch.int64, device=config.device)
        self._ahead_J = torch.arange(1, -max_match, -1, device=config.device)
        self._step_M = torch.arange(config.max_gamma, device=config.device)

    def aim(self, write: Write, row: int, start: int, count: int, place: int) -> None:
        """The next chunk: `count` tokens of a row from `start` on, to `place`."""
        write(self.chunk_4, (row, start, count, place))

    def take(self, state: RowState, width: int) -> None:
        """Copy the chunk, at most `width - 1` tokens, put an `END` behind it, and index what is followed by a token."""
        row, start, count, place = self.chunk_4.unbind()
        index_W = torch.arange(width, device=self.ring_Q.device)
        source_W = (start + index_W).clamp(max=state.capacity - 1)
        tokens_W = torch.where(index_W < count, state.history_RP.view(-1)[row * state.capacity + source_W], END)
        slot_W = torch.where(index_W <= count, (place + index_W) % self.size, self.size)
        self.ring_Q.index_copy_(0, slot_W, tokens_W)
        place_U = place + width - 2 - torch.arange(width + self.index.max_match - 1, device=self.ring_Q.device)
        cells_1WSH = self.index.cells(self.ring_Q[place_U % self.size].unsqueeze(0), self.index.first_R1SH)
        end_W = place_U[:width]
        self.index.insert(cells_1WSH, torch.where(end_W < place + count - 1, end_W, -1).unsqueeze(0))

    def propose(self, newest_BK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drafts `[B, M]`, how many of them there are and how long the match was `[B, 1]` each.

        `newest_BK` are the rows' newest tokens, newest first, `BEFORE` where a row has fewer.
        """
        index = self.index
        ends_BC = index.look_up(index.cells(newest_BK, index.first_R1SH))
        found_BCJ = self.ring_Q[(ends_BC.unsqueeze(2) + self._ahead_J) % self.size]
        runs_BC = index.runs(found_BCJ[:, :, 1:] == newest_BK.unsqueeze(1))
        run_B1, end_B1 = longest(runs_BC * (found_BCJ[:, :, 0] != END), ends_BC)
        drafts_BM = self.ring_Q[(end_B1 + 1 + self._step_M) % self.size]
        count_B1 = torch.where(drafts_BM != END, self._step_M.shape[0], self._step_M).amin(1, keepdim=True)
        return drafts_BM.clamp(min=0), count_B1, run_B1


def pool_tokens(config: EngineConfig) -> int:
    """Size of the ring, a power of two: room for a chunk of a prompt's size at the least."""
    wanted = max(min(config.max_batch * config.context_len, MOST_TOKENS), 2 * config.prefill_chunk, 64)
    return 1 << (wanted - 1).bit_length()


def pool_bytes(config: EngineConfig, min_match: int, max_match: int) -> int:
    """Memory of the ring and its index."""
    size = pool_tokens(config)
    return 8 * (size + 1) + table_bytes(1, size, min_match, max_match)
