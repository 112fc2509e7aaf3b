"""The control interface: what a policy, an engine and the controller between them say to each other.

Whoever knows this file can write a policy or an engine. It needs numpy and the standard library only, so a
policy never imports torch and an engine never imports a policy.

Words used everywhere: a *row* is a request's place in the batch; γ (`gamma`) is the depth drafted per step;
`accepted` counts draft tokens only, never the bonus token; `emitted` counts all tokens a step added. In every
record `None` means *unknown*, and a policy must work (perhaps worse) when all optional fields are `None`.

Arrays are indexed by place in `rows`: `context_lens[i]` belongs to row `rows[i]`. B is `len(rows)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from adaptive.requests import Output, Request, RequestId

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

DrafterKind = Literal["lm", "eagle", "medusa", "mtp", "ngram"]
Signal = Literal["top_prob", "entropy", "margin", "target_entropy", "js", "match_len"]
DRAFT_SIGNALS: tuple[Signal, ...] = ("top_prob", "entropy", "margin")
"""Of the drafter's distribution before its token is drawn, at temperature 1 and unfiltered: the largest probability,
the entropy in bits (base 2, as AdaSD has it) and the gap between the two largest probabilities."""
TARGET_SIGNALS: tuple[Signal, ...] = ("target_entropy", "js")
"""Known once a token is verified, at temperature 1 and unfiltered: the entropy in bits of the distribution that judges
it, and its Jensen-Shannon distance to the drafter's (the root of the divergence in base 2, so from 0 to 1)."""


class AcceptanceKind(StrEnum):
    """The rule that decides which draft tokens stand. `standard` and `block` keep the target's distribution exactly."""

    STANDARD = "standard"  # rejection sampling, Leviathan et al. 2023; vLLM's name for it
    BLOCK = "block"  # block verification, Sun et al. 2024
    TYPICAL = "typical"  # Medusa
    THRESHOLD = "threshold"  # SGLang's two thresholds
    JS = "js"  # AdaSD
    DIVERGENCE = "divergence"  # fuzzy speculative decoding
    MENTORED = "mentored"
    CACTUS = "cactus"
    FLY = "fly"  # gated by entropy

    @property
    def lossless(self) -> bool:
        return self in (AcceptanceKind.STANDARD, AcceptanceKind.BLOCK)

    @property
    def params(self) -> Mapping[str, float]:
        """What the rule can be told, with defaults; exact rules take nothing."""
        return RULE_PARAMS.get(self, {})


TABLE = "table"
"""The one parameter `[B, K]`: of `js`, the chance to stand at K equally spaced distances from 0 to 1."""
RULE_PARAMS: Mapping[AcceptanceKind, Mapping[str, float]] = {
    AcceptanceKind.TYPICAL: {"epsilon": 0.09, "delta": 0.3},
    AcceptanceKind.THRESHOLD: {"threshold_single": 1.0, "threshold_acc": 1.0},
    AcceptanceKind.JS: {"epsilon": 1e-4, "threshold": 0.0},
    AcceptanceKind.DIVERGENCE: {"threshold": 0.1, "measure": 0.0, "fallback": 0.0},
    AcceptanceKind.MENTORED: {"alpha": 0.2},
    AcceptanceKind.CACTUS: {"alpha": 0.05},
    AcceptanceKind.FLY: {"entropy": 0.3, "window": 6.0},
}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A rule and its parameters: scalars or `[B]` (`TABLE`: `[B, K]`), copied to the device and never a graph key."""

    kind: AcceptanceKind = AcceptanceKind.STANDARD
    params: Mapping[str, float | FloatArray] = field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        return self.kind.lossless


STANDARD = Acceptance()


# --- declared once, before anything is captured -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrafterCaps:
    """One drafter of an engine. `shared_vocab` is False where its tokens are not the target's own."""

    kind: DrafterKind
    max_gamma: int
    shared_vocab: bool = True
    signals: frozenset[Signal] = frozenset()


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The largest tree: levels, nodes on a level, nodes in all. `dynamic`: also trees whose shape the device finds."""

    max_depth: int
    max_width: int
    max_nodes: int
    dynamic: bool = False


class CostModel(Protocol):
    """Predicted seconds of the two halves of a step."""

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float: ...
    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float: ...


class Identity(NamedTuple):
    """What runs where, in words: times measured on another machine or model do not apply."""

    machine: str
    model: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. `gammas` always holds 0 (plain decode); `batch_buckets` are ascending batch widths.

    `lag` is how many steps late a report may arrive, `delay` how many steps after `plan` a decision takes effect.
    `packed_widths` are the captured widths of a verify pass without trees in tokens, roots included, `context_widths`
    those of what attention reads of each row, in tokens; both ascending, empty if unknown or not rounded.
    """

    gammas: tuple[int, ...]
    batch_buckets: tuple[int, ...]
    drafters: Mapping[str, DrafterCaps] = field(default_factory=dict)
    acceptances: frozenset[AcceptanceKind] = frozenset({AcceptanceKind.STANDARD})
    ragged: bool = False
    verify_budget: bool = False
    stepwise: bool = False
    tree: TreeLimits | None = None
    lag: int = 0
    delay: int = 0
    cost: CostModel | None = None
    identity: Identity | None = None
    packed_widths: tuple[int, ...] = ()
    context_widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if 0 not in self.gammas or list(self.gammas) != sorted(set(self.gammas)):
            raise ValueError(f"gammas={self.gammas!r} must be ascending, distinct and start at 0 (plain decode)")
        if not self.batch_buckets or list(self.batch_buckets) != sorted(set(self.batch_buckets)):
            raise ValueError(f"batch_buckets={self.batch_buckets!r} must be ascending, distinct and not empty")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy can reach; the engine captures that and no more.

    `gammas` maps each batch bucket to the γ the policy may choose there. `self_paced` policies bring their own
    dwell and hysteresis, so the guard applies none. `trees` are prepared at every γ that reaches their depth; others
    that the engine can hold may be decided too.
    """

    gammas: Mapping[int, tuple[int, ...]]
    drafters: frozenset[str] = frozenset()
    signals: frozenset[Signal] = frozenset()
    acceptances: frozenset[AcceptanceKind] = frozenset({AcceptanceKind.STANDARD})
    stepwise: bool = False
    budget: bool = False
    trim: bool = False
    trees: frozenset[TreeShape] = frozenset()
    self_paced: bool = False

    @classmethod
    def everywhere(cls, caps: Capabilities, gammas: Iterable[int], *, self_paced: bool = False) -> Self:
        """The same γ at every batch bucket, each lowered to the largest γ the engine offers below it."""
        reach = tuple(sorted({floor_gamma(caps.gammas, gamma) for gamma in gammas} | {0}))
        return cls({bucket: reach for bucket in caps.batch_buckets}, self_paced=self_paced)


def floor_gamma(gammas: Sequence[int], gamma: int) -> int:
    """The largest offered γ that is not above `gamma` (`gammas` ascending, starting at 0)."""
    return max((offered for offered in gammas if offered <= gamma), default=0)


def ceil_bucket(buckets: Sequence[int], size: int) -> int:
    """The smallest bucket that holds `size`, or `size` itself when it is larger than all of them."""
    return next((bucket for bucket in buckets if bucket >= size), size)


# --- once per step ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepView:
    """The batch before step `step`, in host numbers only, so that reading it can not wait for the device.

    `num_decode` counts decoding requests; `num_prefill_tokens` is the size of this step's prompt chunk. `now` and
    `elapsed` (since each row's first token) are seconds; `tpot_slo` is seconds per token, nan where a row has none.
    `known_step` is the newest step whose report has been delivered. `match_len` is known before drafting with an
    n-gram drafter; `stale_tokens[name]` is what switching to that drafter would first have to catch up.
    """

    step: int
    known_step: int
    now: float
    num_decode: int
    rows: IntArray
    context_lens: IntArray
    emitted: IntArray
    num_prefill_tokens: int = 0
    num_waiting: int = 0
    kv_free: float | None = None
    elapsed: FloatArray | None = None
    tpot_slo: FloatArray | None = None
    slo_class: tuple[str | None, ...] | None = None
    greedy: BoolArray | None = None
    allow_lossy: BoolArray | None = None
    may_speculate: BoolArray | None = None
    match_len: IntArray | None = None
    stale_tokens: Mapping[str, IntArray] | None = None


@dataclass(frozen=True, slots=True)
class Confidence:
    """The chance that draft token k stands once those before it do, from a signal s: sigmoid(weight[k] · s + bias[k]).

    Survival of a position is the product over the positions up to it. `signal` is one that is known before
    verification: a draft signal, or `match_len`.
    """

    signal: Signal
    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class DraftStop:
    """Stop drafting a row after the token whose signal passes `threshold` (scalar or `[B]`); that token is kept.

    A draft signal, of a drafter that drafts token by token: `entropy` passes above the threshold, `top_prob` and
    `margin` below it.
    """

    signal: Signal
    threshold: float | FloatArray


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A static tree (`parents[i] < i`, root = -1), or the limits of a dynamic one.

    The first child of a node is its likeliest. A decision's γ is the tree's depth; a smaller one cuts the tree.
    """

    parents: tuple[int, ...] | None = None
    depth: int = 0
    width: int = 0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the next step does.

    `verify` is a total of packed tokens (roots included) to split on the device, or drafted lengths per row (roots
    excluded) where the engine is `ragged`. Of a total the tokens of highest survival by `confidence` are verified,
    without it all rows' first tokens before their second; with `row_target` (tokens expected of a row, bonus included)
    those come first that a row needs to reach it. `reason` is a short word that becomes a metric label.

    A `tree` is drafted and verified as a whole: `verify`, `row_target`, `confidence` and `draft_stop` steer chains
    only, and the policy is not asked in between (`extend`, `trim`).
    """

    gamma: int
    verify: int | IntArray | None = None
    row_target: FloatArray | None = None
    confidence: Confidence | None = None
    draft_stop: DraftStop | None = None
    tree: TreeShape | None = None
    acceptance: Acceptance = STANDARD
    drafter: str | tuple[str, ...] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DraftProgress:
    """Between draft steps: signals `[B]` of the token just drafted at `position` (0 = first), nan where none was.

    For `trim`, after the last of them: signals `[B, gamma]` of all positions.
    """

    position: int
    rows: IntArray
    signals: Mapping[Signal, FloatArray]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What an earlier step did, per row of that step.

    `drafted` ≥ `verified` ≥ `accepted`: acceptance past `verified` was never observed (censored). Of a tree the first
    two count nodes, `accepted` the path that stands, and it leaves no signals (None). `live` is False
    where the request had already ended. `step_s` runs from completion to completion (nan after idle); `draft_s`,
    `verify_s` and `prefill_s` are parts of it, nan where not timed. `prefill_s` is what reading and copying prompts
    took, of requests that need not be in this batch yet. `lossy_accepted` of the accepted tokens stood beyond the exact
    rule, `divergence_spent` says how far that strays (docs/acceptance.md); None under exact rules. Signals are
    `[B, gamma]`: those of `DRAFT_SIGNALS` up to `drafted`, of `TARGET_SIGNALS` up to `verified`, nan beyond.
    """

    step: int
    gamma: int
    rows: IntArray
    live: BoolArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    emitted: IntArray
    lossy_accepted: IntArray | None = None
    divergence_spent: FloatArray | None = None
    num_prefill_tokens: int = 0
    step_s: float = float("nan")
    draft_s: float = float("nan")
    verify_s: float = float("nan")
    prefill_s: float = float("nan")
    signals: Mapping[Signal, FloatArray] | None = None


# --- the three protocols ------------------------------------------------------------------------------------------


class Controller(Protocol):
    """All that an engine ever calls."""

    def attach(self, caps: Capabilities) -> Needs:
        """Called before anything is captured."""

    def plan(self, view: StepView) -> Decision:
        """Called before each step that decodes."""

    def extend(self, progress: DraftProgress) -> BoolArray:
        """Called between draft steps, only if `Needs.stepwise`: True drafts one more token for that row."""

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        """Called between drafting and verifying, only if `Needs.trim`: a new `Decision.verify`; None keeps the old."""

    def report(self, report: StepReport) -> None:
        """Called off the critical path, about an earlier step."""

    def forget(self, rows: Sequence[int]) -> None:
        """Rows whose request ended or gave way; follows the last report that names them, precedes their reuse.

        A request that comes back takes a row as a new one would, with `emitted` and `elapsed` where they were.
        """


@runtime_checkable
class Policy(Protocol):
    """All that a policy author writes. Stored parameters plus learned state; `clone` copies the first, not the second.

    A policy that sets `Needs.stepwise` also has `extend(progress) -> bool[B]`; one that sets `Needs.trim` has
    `trim(progress) -> int | lens[B] | None`. Tokens are drawn by then, and the signals of a later one follow from those
    before it: it may cut rows under greedy decoding (`StepView.greedy`), and the guard verifies all others as far as
    `decide` has them. Lengths for rows that sample belong into `decide` (`verify`, `confidence`, `draft_stop`) and
    `extend` (docs/concepts.md).
    """

    def bind(self, caps: Capabilities) -> Needs:
        """Learn what the engine can do, forget everything else. ValueError for what the policy can not work with."""

    def decide(self, view: StepView) -> Decision: ...

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """`decision` is what was executed, after the guard; `view` is what it was decided on."""

    def forget(self, rows: Sequence[int]) -> None: ...

    def clone(self) -> Self:
        """The same parameters, fresh state (one per A/B arm)."""


class Engine(Protocol):
    """All that `AdaptiveController`, the simulator and `check_engine` use. `step` does nothing when idle."""

    def capabilities(self) -> Capabilities: ...

    def attach(self, controller: Controller) -> None:
        """Ask the controller for its needs, prepare them, and call it from now on."""

    def prepare(self, needs: Needs) -> None:
        """Capture what is missing; also called at a step edge after a live policy swap."""

    def submit(self, request: Request) -> RequestId: ...

    def step(self) -> Sequence[Output]: ...

    def cancel(self, request: RequestId) -> None: ...
