"""What the engine asks of a drafter."""

from __future__ import annotations

from typing import Protocol

from adaptive.contract import DrafterCaps
from engine.batch import RowState


class Drafter(Protocol):
    """Writes `drafts_RM`, `draft_lens_R` and `match_lens_R` of the first `batch` rows, from their history alone.

    `propose` is captured: static shapes, no look at the host, `context` bounds the history it may read.
    """

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> DrafterCaps: ...

    def propose(self, state: RowState, batch: int, context: int) -> None: ...
