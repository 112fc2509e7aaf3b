"""What the engine asks of a drafter. All that runs on the device is captured: static shapes, no look at the host."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from adaptive.contract import DrafterCaps, Signal
from engine.batch import RowState
from engine.features import Features
from engine.sampling.distribution import Sampler
from engine.tree import TreeKey, TreeState


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
    """What fixes the shapes and branches of a draft piece. `signals` are those to leave (`engine/signals.py`).

    The first piece of a step takes up to `width` tokens per row, `tokens` in all; where it is the only one, it drafts
    `width` per row. 0 stands for as many as the drafter ever takes; later pieces have neither.
    """

    batch: int
    context: int
    sampler: Sampler = Sampler.GREEDY
    signals: frozenset[Signal] = frozenset()
    width: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class CatchUpKey:
    """The same of a catch-up chunk: up to `width` tokens per row, `tokens` in all."""

    batch: int
    width: int
    tokens: int
    context: int


class StepDrafter(Protocol):
    """Drafts between the decision and verification: one token per row and piece, or all of them in one.

    A drafter with a cache of its own takes the rows' tokens in order. `state.cached_R` counts those whose place in the
    cache is final; `RequestState.cached` is the host's copy. The first piece of a step takes what is lacking, the
    newest token included, if that is at most `reach` tokens; what lacks beyond is caught up before. `keeps_drafts` says
    whether the place of a draft token that stands is final.

    Rows of fewer than `least` tokens do not draft yet, rows longer than `limit` not any more. `q_RMV` keeps the
    distribution that each draft token was drawn from, unless all rows are greedy; `plain_RMV` the same at temperature
    1 without filters, where somebody asked for `js`. `features` is what it wants kept of the target's forward passes.
    """

    q_RMV: Tensor
    plain_RMV: Tensor | None
    limit: int
    least: int
    reach: int
    keeps_drafts: bool
    at_once: bool
    features: Features | None

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
        """Write `drafts_RM[:, position]`, or all of them where `at_once`; at position 0 also `draft_lens_R`."""


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A drafter whose state per token can be copied with a prefix from row to row.

    Of a drafter with a cache of its own that can not do this, nothing is reused: its cache is filled anew.
    """

    def copy_prefix(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> None:
        """Copy the first `count` ≤ `context` tokens' state; all three numbers are the device's."""


@dataclass(frozen=True, slots=True)
class GrowKey:
    """What fixes the shapes of a tree's draft pieces."""

    batch: int
    context: int
    tree: TreeKey


@runtime_checkable
class TreeDrafter(Protocol):
    """A drafter that also fills trees, between the decision and verification; of tokens chosen without chance.

    One that drafts ahead does it in one piece, the others in one per level.
    """

    def grow(self, state: RowState, tree: TreeState, key: GrowKey, level: int) -> None:
        """At level 0 give every row its tree; write the tokens of depth level + 1, or of all depths."""

    def keep_path(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
        """The first `accepted_B` nodes of a path stand: bring a cache of one's own in line, before lengths change."""


Drafter = AheadDrafter | StepDrafter


def features_of(drafter: Drafter | None) -> Features | None:
    """The features that a drafter wants kept."""
    return None if drafter is None or drafter.when == "ahead" else drafter.features
