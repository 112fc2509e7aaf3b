"""What the engine asks of a drafter. All that runs on the device is captured: static shapes, no look at the host."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from adaptive.contract import DrafterCaps, Signal
from engine.batch import RowState
from engine.sampling.distribution import Sampler


class AheadDrafter(Protocol):
    """Drafts right after acceptance, for the step to come, from the rows' history alone.

    The decision is then made with the drafts at hand, and q is one-hot on each draft token.
    """

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> DrafterCaps: ...

    @property
    def when(self) -> Literal["ahead"]: ...

    def propose(self, state: RowState, batch: int) -> None:
        """Write `drafts_RM`, `draft_lens_R` and `match_lens_R` of the first `batch` rows."""


@dataclass(frozen=True, slots=True)
class DraftKey:
    """What fixes the shapes and branches of a draft step. `signals` are those to leave (`engine/signals.py`)."""

    batch: int
    context: int
    sampler: Sampler = Sampler.GREEDY
    signals: frozenset[Signal] = frozenset()


@dataclass(frozen=True, slots=True)
class CatchUpKey:
    """The same of a catch-up chunk: up to `width` tokens per row, `tokens` in all."""

    batch: int
    width: int
    tokens: int
    context: int


class StepDrafter(Protocol):
    """Drafts between the decision and verification, one token per row and piece, from a cache of its own.

    The cache lacks each row's newest token, and more after steps that did not draft. `state.cached_R` counts what it
    holds; `RequestState.cached` is the host's copy. A row longer than `limit` tokens does not draft any more. `q_RMV`
    keeps the distribution that each draft token was drawn from, unless all rows are greedy; `plain_RMV` the same at
    temperature 1 without filters, where somebody asked for `js`.
    """

    q_RMV: Tensor
    plain_RMV: Tensor | None
    limit: int

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> DrafterCaps: ...

    @property
    def when(self) -> Literal["before"]: ...

    def prepare(self, signals: Set[Signal]) -> None:
        """Allocate what these signals take, before anything is captured that leaves them."""

    def catch_up(self, state: RowState, key: CatchUpKey) -> None:
        """Take a chunk of what the cache lacks, never the newest token."""

    def draft(self, state: RowState, key: DraftKey, position: int) -> None:
        """Write `drafts_RM[:, position]`; at position 0 also `draft_lens_R`, and at most two tokens may be lacking."""


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A drafter whose state per token can be copied with a prefix from row to row.

    Of a drafter with a cache of its own that can not do this, nothing is reused: its cache is filled anew.
    """

    def copy_prefix(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> None:
        """Copy the first `count` ≤ `context` tokens' state; all three numbers are the device's."""


Drafter = AheadDrafter | StepDrafter
