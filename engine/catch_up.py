"""The host's side of a draft model: whose cache lacks what, and the chunks that close the gap.

After a step that drafted, a row's cache lacks its newest token, or the newest two where every draft token stood; the
first draft step takes those. Prompts, and steps at γ = 0, leave longer gaps. They are closed when γ rises again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import IntArray, ceil_bucket
from engine.batch import RowState
from engine.config import EngineConfig, context_buckets, doubling_buckets, token_buckets
from engine.drafters import CatchUpKey, StepDrafter
from engine.graphs import Backend, Piece

if TYPE_CHECKING:
    from engine.request_state import RequestState


class CatchUp:
    """Keeps `RequestState.cached` equal to the device's `cached_R` without looking at the device."""

    def __init__(self, config: EngineConfig, drafter: StepDrafter, state: RowState, backend: Backend) -> None:
        self._drafter = drafter
        self._state = state
        self._backend = backend
        self._widths = doubling_buckets(config.prefill_chunk)
        self._tokens = token_buckets(config.max_batch * config.prefill_chunk)
        self._contexts = context_buckets(config.context_len)
        self._pieces: dict[CatchUpKey, Piece] = {}

    @property
    def limit(self) -> int:
        """Tokens of a row that the drafter's cache holds at most."""
        return self._drafter.limit

    def available(self, gamma: int, batch: Sequence[RequestState]) -> IntArray:
        """Draft tokens each request will have to verify, as `RowState.available` has it once they are drafted."""
        reach = [
            min(gamma, one.room, self._drafter.limit + 1 - one.context_len) if self._drafts(one) else 0 for one in batch
        ]
        return np.array(reach, dtype=np.int64).clip(min=0)

    def run(self, bucket: int, batch: Sequence[RequestState]) -> None:
        """Feed what is lacking, chunk by chunk, until no row lacks more than two tokens."""
        drafting = [one for one in batch if self._drafts(one)]
        while (widest := max((one.context_len - 1 - one.cached for one in drafting), default=0)) > 1:
            width = ceil_bucket(self._widths, min(widest, self._widths[-1]))
            counts = [min(width, one.context_len - 1 - one.cached) for one in drafting]
            for one, count in zip(drafting, counts, strict=True):
                one.cached += count
            longest = max(one.cached for one in drafting)
            tokens = ceil_bucket(self._tokens, sum(counts))
            self._piece(CatchUpKey(bucket, width, tokens, ceil_bucket(self._contexts, longest)))()

    def settle(self, gamma: int, batch: Sequence[RequestState], accepted: IntArray) -> None:
        """A step drafted γ tokens and `accepted` of them stood: keys and values of the others are void."""
        for one, stood in zip(batch, accepted.tolist(), strict=True):
            if self._drafts(one):
                one.cached = one.context_len + min(gamma - 1, stood)

    def _drafts(self, request: RequestState) -> bool:
        return request.request.speculation and request.room > 0 and request.context_len <= self._drafter.limit

    def _piece(self, key: CatchUpKey) -> Piece:
        if key not in self._pieces:
            drafter, state = self._drafter, self._state
            self._pieces[key] = self._backend.capture(lambda: drafter.catch_up(state, key), [state.cached_R])
        return self._pieces[key]
