"""The host's side of a drafter's cache: whose lacks what, and the chunks that close the gap.

After a step that drafted, a row's cache lacks what the drafter has not read, or not with the target's features: a draft
model lacks the newest token, or two where every draft token stood; a head all that the step emitted. The first draft
piece takes those. Prompts, and steps at γ = 0, leave longer gaps. They are closed when γ rises again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import IntArray, ceil_bucket
from engine.batch import RowState
from engine.config import EngineConfig, context_buckets, doubling_buckets, token_buckets
from engine.drafters import CatchUpKey, DraftKey, StepDrafter
from engine.graphs import Backend, Piece

if TYPE_CHECKING:
    from engine.request_state import RequestState


class CatchUp:
    """Keeps `RequestState.cached` equal to the device's `cached_R` without looking at the device."""

    def __init__(self, config: EngineConfig, drafter: StepDrafter, state: RowState, backend: Backend) -> None:
        self.drafter = drafter
        self._state = state
        self._backend = backend
        self._records = backend.records
        chunk = config.prefill_chunk
        self._widths = tuple(sorted({max(1, chunk // 8), chunk})) if self._records else doubling_buckets(chunk)
        self._tokens = token_buckets(config.max_batch * chunk)
        self._contexts = context_buckets(config.context_len, coarse=self._records)
        self._pieces: dict[CatchUpKey, Piece] = {}

    def available(self, gamma: int, batch: Sequence[RequestState]) -> IntArray:
        """Draft tokens each request will have to verify, as `RowState.available` has it once they are drafted."""
        reach = [
            min(gamma, one.room, self.drafter.limit + 1 - one.context_len) if self._drafts(one) else 0 for one in batch
        ]
        return np.array(reach, dtype=np.int64).clip(min=0)

    def stale(self, batch: Sequence[RequestState]) -> IntArray:
        """What each request would have to catch up before a first draft piece could take it along `[B]`."""
        lacking = [one.context_len - 1 - one.cached if self._drafts(one) else 0 for one in batch]
        return np.array([count if count >= self.drafter.reach else 0 for count in lacking], dtype=np.int64)

    def run(self, bucket: int, batch: Sequence[RequestState]) -> None:
        """Feed what is lacking, chunk by chunk, until no row lacks more than the first draft piece takes."""
        drafting = [one for one in batch if self._drafts(one)]
        while (widest := max((one.context_len - 1 - one.cached for one in drafting), default=0)) >= self.drafter.reach:
            width = ceil_bucket(self._widths, min(widest, self._widths[-1]))
            counts = [min(width, one.context_len - 1 - one.cached) for one in drafting]
            longest = max(one.cached + count for one, count in zip(drafting, counts, strict=True))
            tokens = bucket * width if self._records else ceil_bucket(self._tokens, sum(counts))
            self._piece(CatchUpKey(bucket, width, tokens, ceil_bucket(self._contexts, longest)))()
            for one, count in zip(drafting, counts, strict=True):  # not before it ran: an exception may cut in
                one.cached += count

    def first(self, key: DraftKey, gamma: int, batch: Sequence[RequestState]) -> DraftKey:
        """The key of the first draft piece, once `run` has left no more than that piece takes."""
        if self.drafter.at_once or self.drafter.keeps_drafts:
            return self.firsts(key, gamma)[0]
        lacking = [one.context_len - one.cached for one in batch if self._drafts(one)]
        widest = max(lacking, default=1)
        if self._records:
            return self.firsts(key, widest - 1)[-1]
        return replace(key, width=widest, tokens=ceil_bucket(self._tokens, max(sum(lacking), 1)))

    def firsts(self, key: DraftKey, gamma: int) -> list[DraftKey]:
        """The keys of first pieces that steps of γ draft tokens can lead to, where making one costs something."""
        drafter = self.drafter
        if drafter.at_once:
            return [replace(key, width=gamma, tokens=key.batch)]
        buckets = doubling_buckets(drafter.reach)
        widths = [width for width in buckets if width <= ceil_bucket(buckets, gamma + 1)]
        if drafter.keeps_drafts:
            widths = [drafter.reach]
        return [replace(key, width=width, tokens=width * key.batch) for width in widths]

    def settle(self, pieces: int, batch: Sequence[RequestState], accepted: IntArray) -> None:
        """A step ran so many draft pieces and `accepted` tokens stood: keys and values of the others are void."""
        for one, stood in zip(batch, accepted.tolist(), strict=True):
            if self._drafts(one):
                one.cached = one.context_len + (min(pieces - 1, stood) if self.drafter.keeps_drafts else 0)

    def _drafts(self, request: RequestState) -> bool:
        fits = self.drafter.least <= request.context_len <= self.drafter.limit
        return request.request.speculation and request.room > 0 and fits

    def _piece(self, key: CatchUpKey) -> Piece:
        if key not in self._pieces:
            drafter, state = self.drafter, self._state
            self._pieces[key] = self._backend.capture(lambda: drafter.catch_up(state, key), [state.cached_R])
        return self._pieces[key]
