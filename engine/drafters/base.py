"""What the engine asks of a drafter. All that runs on the device is captured: static shapes, no look at the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from adaptive.contract import DrafterCaps
from engine.batch import RowState
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

    def propose(self, state: RowState, batch: int, context: int) -> None:
        """Write `drafts_RM`, `draft_lens_R` and `match_lens_R` of the first `batch` rows."""


@dataclass(frozen=True, slots=True)
class DraftKey:
    """What fixes the shapes and branches of a draft step."""

    batch: int
    context: int
    sampler: Sampler = Sampler.GREEDY


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
    keeps the distribution that each draft token was drawn from, unless all rows are greedy.
    """

    q_RMV: Tensor
    limit: int

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> DrafterCaps: ...

    @property
    def when(self) -> Literal["before"]: ...

    def catch_up(self, state: RowState, key: CatchUpKey) -> None:
        """Take a chunk of what the cache lacks, never the newest token."""

    def draft(self, state: RowState, key: DraftKey, position: int) -> None:
        """Write `drafts_RM[:, position]`; at position 0 also `draft_lens_R`, and at most two tokens may be lacking."""


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

    def keep(self, state: RowState, path_BP: Tensor, accepted_B: Tensor) -> None:
        """The first `accepted_B` nodes of a path stand: bring a cache of one's own in line, before lengths change."""


Drafter = AheadDrafter | StepDrafter
