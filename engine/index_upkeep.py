"""The host's side of the n-gram index: which rows' tokens it lacks, and the chunks that close the gap.

Each drafting step takes in its own newest tokens. Prompts, and steps at γ = 0, leave gaps that are wider than that;
they are closed when γ rises again, before the first draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaptive.contract import IntArray, ceil_bucket
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters import NgramDrafter
from engine.graphs import Backend, Piece

if TYPE_CHECKING:
    from engine.request_state import RequestState


class IndexUpkeep:
    """Counts what the index holds of each row without looking at the device, and fills the pool where there is one."""

    def __init__(self, config: EngineConfig, drafter: NgramDrafter, state: RowState, backend: Backend) -> None:
        self._drafter = drafter
        self._state = state
        self._backend = backend
        self._chunk = config.prefill_chunk
        self._widths = tuple(sorted({max(1, self._chunk // 8), self._chunk}))
        self._indexed = [0] * config.max_batch
        self._pooled = 0  # places of the pool's ring used so far
        self._pieces: dict[tuple[str, int], Piece] = {}

    def admit(self, row: int) -> None:
        """Another request takes the row."""
        self._drafter.admit(self._backend.write, row)
        self._indexed[row] = 0

    def run(self, batch: Sequence[RequestState]) -> None:
        """Index what is lacking, chunk by chunk, until no row lacks more than a draft takes in by itself."""
        for one in batch:
            while (lacking := self._lacking(one)) > self._drafter.window:
                width = ceil_bucket(self._widths, min(lacking, self._chunk))
                self._drafter.aim(self._backend.write, one.row, self._indexed[one.row])
                self._take_in(width)
                self._indexed[one.row] += min(width, lacking)

    def settle(self, batch: Sequence[RequestState], accepted: IntArray) -> None:
        """A step has drafted ahead: the index holds all but the newest of the tokens that it emitted."""
        for one, stood in zip(batch, accepted.tolist(), strict=True):
            if one.request.speculation:
                self._indexed[one.row] = one.context_len + stood

    def retire(self, request: RequestState) -> None:
        """A request ends; its row is still as it left it. The end of its prompt goes along, for the first match."""
        pool = self._drafter.pool
        if pool is None or not request.tokens:
            return
        start, end = max(0, len(request.prompt) - self._drafter.index.max_match), request.context_len
        while start < end:
            count = min(self._chunk, end - start)
            pool.aim(self._backend.write, request.row, start, count, self._pooled)
            self._pool_chunk(self._chunk + 1)
            start, self._pooled = start + count, self._pooled + count
        self._pooled += 1  # the mark behind the text

    def _lacking(self, request: RequestState) -> int:
        """Tokens not indexed, besides the newest."""
        return request.context_len - 1 - self._indexed[request.row] if request.request.speculation else 0

    def _take_in(self, width: int) -> None:
        drafter, state, key = self._drafter, self._state, ("index", width)
        if key not in self._pieces:
            self._pieces[key] = self._backend.capture(lambda: drafter.take_in(state, width), [])
        self._pieces[key]()

    def _pool_chunk(self, width: int) -> None:
        pool, state, key = self._drafter.pool, self._state, ("pool", width)
        assert pool is not None
        if key not in self._pieces:
            self._pieces[key] = self._backend.capture(lambda: pool.take(state, width), [])
        self._pieces[key]()
