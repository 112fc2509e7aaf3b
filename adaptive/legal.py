"""What a decision may be: an engine's capabilities, narrowed to what was prepared for one policy.

Nonsense comes from code we do not know, so values are checked as `object`, whatever their declared type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from adaptive.contract import (
    DRAFT_SIGNALS,
    STANDARD,
    TABLE,
    TARGET_SIGNALS,
    Acceptance,
    AcceptanceKind,
    BoolArray,
    Capabilities,
    Confidence,
    Decision,
    DraftProgress,
    DraftStop,
    FloatArray,
    IntArray,
    Needs,
    TreeLimits,
    TreeShape,
    ceil_bucket,
    floor_gamma,
)

FIELDS = tuple(field.name for field in fields(Decision))
NUMBER = (int, float, np.integer, np.floating)

Note = Callable[[str, str], None]
"""Told of each illegal value: its kind (a metric label) and a sentence that names it."""


@runtime_checkable
class Stepwise(Protocol):
    """The part of a policy that `Needs.stepwise` promises."""

    def extend(self, progress: DraftProgress) -> BoolArray: ...


@runtime_checkable
class Trimming(Protocol):
    """The part of a policy that `Needs.trim` promises."""

    def trim(self, progress: DraftProgress) -> int | IntArray | None: ...


def checked_needs(policy: object, needs: object, caps: Capabilities, *, allow_lossy: bool) -> Needs:
    """`needs` with plain decode at every bucket, which the guard falls back on. ValueError for what can not be met."""
    name = type(policy).__name__
    if not isinstance(needs, Needs):
        raise ValueError(f"{name}.bind returned {needs!r}: return adaptive.contract.Needs")
    for bucket, gammas in needs.gammas.items():
        if bucket not in caps.batch_buckets:
            raise ValueError(f"{name} needs batch bucket {bucket!r}: the engine has {list(caps.batch_buckets)}")
        if not set(gammas) <= set(caps.gammas):
            raise ValueError(f"{name} needs gamma {list(gammas)} at bucket {bucket}: choose from {list(caps.gammas)}")
    offered_signals = frozenset[str]().union(*(drafter.signals for drafter in caps.drafters.values()))
    missing = (
        ("drafters", needs.drafters - set(caps.drafters), sorted(caps.drafters)),
        ("signals", needs.signals - offered_signals, sorted(offered_signals)),
        ("acceptances", needs.acceptances - caps.acceptances, sorted(caps.acceptances)),
    )
    for what, absent, offered in missing:
        if absent:
            raise ValueError(
                f"{name} needs {what} {sorted(map(str, absent))}: the engine offers {list(map(str, offered))}"
            )
    if needs.stepwise and not (caps.stepwise and isinstance(policy, Stepwise)):
        raise ValueError(f"{name} sets Needs.stepwise: that takes a stepwise engine and an extend method on the policy")
    if needs.budget and not (caps.verify_budget or caps.ragged):
        raise ValueError(f"{name} sets Needs.budget: the engine has neither verify budgets nor row lengths")
    if needs.trim and not (caps.stepwise and (caps.verify_budget or caps.ragged) and isinstance(policy, Trimming)):
        raise ValueError(
            f"{name} sets Needs.trim: that takes a stepwise engine with verify budgets or row lengths, and a trim "
            "method on the policy"
        )
    if needs.trim and caps.delay:
        raise ValueError(f"{name} sets Needs.trim: that takes an engine whose decisions take effect at once (delay 0)")
    unfit = [tree for tree in needs.trees if caps.tree is None or not _tree_fits(tree, caps.tree)]
    if unfit:
        raise ValueError(f"{name} needs {unfit[0]}: the engine offers {caps.tree or 'no trees'}")
    lossy = sorted(kind for kind in needs.acceptances if not kind.lossless)
    if lossy and not allow_lossy:
        raise ValueError(f"{name} needs lossy acceptance {lossy}: open AdaptiveController(..., allow_lossy=True)")
    gammas_by_bucket = {bucket: tuple(sorted({0, *needs.gammas.get(bucket, ())})) for bucket in caps.batch_buckets}
    return replace(needs, gammas=gammas_by_bucket, budget=needs.budget or needs.trim)


class Rules:
    """Judges decisions of a policy whose `needs` (as `checked_needs` gives them) an engine with `caps` prepared."""

    def __init__(self, caps: Capabilities, needs: Needs, *, allow_lossy: bool) -> None:
        self.caps = caps
        self.needs = needs
        self._acceptances = {kind for kind in needs.acceptances if kind.lossless or allow_lossy}
        self._reach: dict[int, tuple[int, ...]] = {}
        self._told: dict[str | tuple[str, ...] | None, frozenset[str]] = {}

    def reach(self, batch: int) -> tuple[int, ...]:
        """The γ prepared for a batch of this size; past the largest bucket, those of the largest."""
        known = self._reach.get(batch)
        if known is None:
            buckets = self.caps.batch_buckets
            known = self._reach[batch] = self.needs.gammas[min(ceil_bucket(buckets, batch), buckets[-1])]
        return known

    def deepest(self, drafter: str | tuple[str, ...] | None) -> int:
        """The largest γ these drafters can draft; None is the engine's own choice of drafter."""
        names = (drafter,) if isinstance(drafter, str) else drafter or ()
        return min((self.caps.drafters[name].max_gamma for name in names), default=self.caps.gammas[-1])

    def plain(self, decision: Decision, batch: int) -> bool:
        """A legal γ, perhaps a stop and a rule, nothing else: the common case, told apart in a microsecond or two."""
        return (
            type(decision.gamma) is int
            and decision.gamma in self.reach(batch)
            and decision.verify is None
            and decision.row_target is None
            and decision.confidence is None
            and decision.tree is None
            and decision.drafter is None
            and (decision.draft_stop is None or self._stops(decision.draft_stop, batch, None))
            and (decision.acceptance is STANDARD or self._judges(decision.acceptance, batch))
            and type(decision.reason) is str
        )

    def mend(self, decision: object, batch: int, note: Note) -> Decision | None:
        """The nearest legal decision, each correction told to `note`; None where no γ can be made out."""
        if not isinstance(decision, Decision):
            note("decision", f"{decision!r} is not a Decision")
            return None
        gamma = self._gamma(decision.gamma, batch, note)
        if gamma is None:
            return None
        drafter = self._drafter(decision.drafter, batch, note)
        gamma = self._drafter_gamma(gamma, drafter, batch, note)
        tree = _tree(decision.tree, self.caps.tree, note)
        acceptance = self._acceptance(decision.acceptance, batch, note)
        if tree is not None:
            decision = _without_levers(decision, note)
            if not acceptance.lossless:
                note("tree_acceptance", f"acceptance {acceptance.kind} beside a tree, which is judged exactly")
                acceptance = STANDARD
        parts = (
            gamma,
            self.verify(decision.verify, gamma, batch, note),
            _row_target(decision.row_target, batch, note),
            self._confidence(decision.confidence, gamma, drafter, note),
            self._draft_stop(decision.draft_stop, batch, drafter, note),
            tree,
            acceptance,
            drafter,
            _reason(decision.reason, note),
        )
        return decision if _unchanged(decision, parts) else Decision(*parts)

    def _gamma(self, gamma: object, batch: int, note: Note) -> int | None:
        whole = _whole(gamma)
        if whole is None:
            note("gamma_type", f"gamma={gamma!r} is not an integer")
            return None
        reach = self.reach(batch)
        if whole in reach:
            return whole
        if whole < 0:
            note("gamma_negative", f"gamma={whole} is below 0")
        elif whole not in self.caps.gammas:
            note("gamma_not_offered", f"gamma={whole} is not offered by the engine: {list(self.caps.gammas)}")
        else:
            note("gamma_not_prepared", f"gamma={whole} is not prepared for batch {batch}: {list(reach)}")
        return floor_gamma(reach, whole)

    def _drafter(self, drafter: object, batch: int, note: Note) -> str | tuple[str, ...] | None:
        if drafter is None:
            return None
        names = (drafter,) if isinstance(drafter, str) else drafter
        per_row = not isinstance(drafter, str)
        if isinstance(names, tuple) and self.needs.drafters.issuperset(names) and not (per_row and len(names) != batch):
            return names if per_row else names[0]
        note("drafter", f"drafter={drafter!r} is none of those the policy asked for: {sorted(self.needs.drafters)}")
        return None

    def _drafter_gamma(self, gamma: int, drafter: str | tuple[str, ...] | None, batch: int, note: Note) -> int:
        deepest = self.deepest(drafter)
        if gamma <= deepest:
            return gamma
        note("gamma_drafter", f"gamma={gamma} is more than drafter {drafter!r} can draft: {deepest}")
        return floor_gamma(self.reach(batch), deepest)

    def verify(self, verify: object, gamma: int, batch: int, note: Note) -> int | IntArray | None:
        if verify is None:
            return None
        total = _whole(verify)
        if total is not None and self.caps.verify_budget and self.needs.budget:
            if total < batch:
                note("verify", f"verify={total} leaves no token for some of {batch} rows")
            return min(max(total, batch), batch * (gamma + 1))
        if total is None and self.caps.ragged and _is_numbers(verify, (batch,), integer=True):
            lens: IntArray = np.clip(verify, 0, gamma)
            if not np.array_equal(lens, verify):
                note("verify", f"verify={verify!r} is not within 0 and gamma={gamma}")
            return lens
        note("verify", f"verify={verify!r} is neither a budget nor {batch} row lengths that this engine prepared")
        return None

    def _signals(self, drafter: str | tuple[str, ...] | None) -> frozenset[str]:
        """Of the signals asked for, those that all of these drafters have; None is the engine's own choice."""
        known = self._told.get(drafter)
        if known is None:
            names = (drafter,) if isinstance(drafter, str) else drafter or ()
            told = (self.caps.drafters[name].signals for name in names)
            known = self._told[drafter] = frozenset[str](self.needs.signals).intersection(*told)
        return known

    def _confidence(
        self, confidence: object, gamma: int, drafter: str | tuple[str, ...] | None, note: Note
    ) -> Confidence | None:
        if confidence is None:
            return None
        if (
            isinstance(confidence, Confidence)
            and confidence.signal not in TARGET_SIGNALS
            and confidence.signal in self._signals(drafter)
            and _is_numbers(confidence.weight, (gamma,))
            and _is_numbers(confidence.bias, (gamma,))
        ):
            return confidence
        note(
            "confidence",
            f"confidence={confidence!r} does not fit gamma={gamma}, or its signal is not one that the policy asked for "
            "and the drafter has before verification",
        )
        return None

    def _draft_stop(
        self, stop: object, batch: int, drafter: str | tuple[str, ...] | None, note: Note
    ) -> DraftStop | None:
        if stop is None or self._stops(stop, batch, drafter):
            return stop
        note(
            "draft_stop",
            f"draft_stop={stop!r} does not fit {batch} rows, or its signal is not one that the policy asked for and "
            "the drafter has of each token as it is drafted",
        )
        return None

    def _stops(self, stop: object, batch: int, drafter: str | tuple[str, ...] | None) -> TypeGuard[DraftStop]:
        """Whether drafting can be stopped by this."""
        return (
            isinstance(stop, DraftStop)
            and stop.signal in DRAFT_SIGNALS
            and stop.signal in self._signals(drafter)
            and (_is_numbers(stop.threshold, (batch,)) or _is_number(stop.threshold))
        )

    def _judges(self, acceptance: object, batch: int) -> TypeGuard[Acceptance]:
        """Whether drafts can be accepted by this."""
        return (
            isinstance(acceptance, Acceptance)
            and isinstance(acceptance.kind, AcceptanceKind)
            and acceptance.kind in self._acceptances
            and all(_fits(acceptance, name, value, batch) for name, value in acceptance.params.items())
        )

    def _acceptance(self, acceptance: object, batch: int, note: Note) -> Acceptance:
        if self._judges(acceptance, batch):
            return acceptance
        if not isinstance(acceptance, Acceptance) or not isinstance(acceptance.kind, AcceptanceKind):
            note("acceptance", f"acceptance={acceptance!r} is not an Acceptance")
        elif acceptance.kind not in self._acceptances:
            kind = "acceptance" if acceptance.kind not in self.needs.acceptances else "lossy"
            note(kind, f"acceptance {acceptance.kind} is not among {sorted(map(str, self._acceptances))}")
        else:
            unfit = [name for name, value in acceptance.params.items() if not _fits(acceptance, name, value, batch)]
            note(
                "acceptance",
                f"acceptance {acceptance.kind} has parameters {unfit} that are not its own, no numbers or do not fit "
                f"{batch} rows: it takes {list(acceptance.kind.params)}",
            )
        return STANDARD


def _unchanged(decision: Decision, parts: tuple[object, ...]) -> bool:
    """Whether a decision is its `parts`, in the order of its fields."""
    return type(decision) is Decision and all(
        getattr(decision, name) is part for name, part in zip(FIELDS, parts, strict=True)
    )


def _reason(reason: object, note: Note) -> str:
    if not isinstance(reason, str):
        note("reason", f"reason={reason!r} is not a string")
        return ""
    return reason


def _row_target(target: object, batch: int, note: Note) -> FloatArray | None:
    if target is None or _is_numbers(target, (batch,)):
        return target
    note("row_target", f"row_target={target!r} is not one finite number for each of {batch} rows")
    return None


def _without_levers(decision: Decision, note: Note) -> Decision:
    """Without what steers the drafting and the lengths of chains, which does not apply to a tree."""
    levers = ("verify", "row_target", "confidence", "draft_stop")
    pulled = [name for name in levers if getattr(decision, name) is not None]
    if not pulled:
        return decision
    note("tree_levers", f"{' and '.join(pulled)} beside a tree: they steer chains only")
    return replace(decision, verify=None, row_target=None, confidence=None, draft_stop=None)


def _tree(tree: object, limits: TreeLimits | None, note: Note) -> TreeShape | None:
    if tree is None:
        return None
    if limits is None:
        note("tree", f"tree={tree!r}: this engine has no trees")
    elif not isinstance(tree, TreeShape) or not _tree_fits(tree, limits):
        note("tree", f"tree={tree!r} is not a tree within {limits}")
    else:
        return tree
    return None


def _tree_fits(tree: TreeShape, limits: TreeLimits) -> bool:
    if tree.parents is None:
        if not limits.dynamic:
            return False
        sizes = zip(
            (tree.depth, tree.width, tree.nodes),
            (limits.max_depth, limits.max_width, limits.max_nodes),
            strict=True,
        )
        return all(1 <= size <= most for size, most in sizes)
    depths: list[int] = []
    for place, parent in enumerate(tree.parents):
        if not -1 <= parent < place:
            return False
        depths.append(1 if parent == -1 else depths[parent] + 1)
    widest = max((depths.count(depth) for depth in set(depths)), default=0)
    return 0 < len(depths) <= limits.max_nodes and max(depths) <= limits.max_depth and widest <= limits.max_width


def _whole(value: object) -> int | None:
    """An integer of Python or numpy as a Python integer; None for everything else, `True` included."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def _is_number(value: object) -> bool:
    return isinstance(value, NUMBER) and bool(math.isfinite(value))


def _is_numbers(value: object, shape: Sequence[int], *, integer: bool = False) -> TypeGuard[NDArray[Any]]:
    return (
        isinstance(value, np.ndarray)
        and value.shape == tuple(shape)
        and value.dtype.kind in ("iu" if integer else "iuf")
        and _finite(value)
    )


def _finite(value: NDArray[Any]) -> bool:
    """Whether all numbers are; a finite sum of squares says so at once, one that overflowed does not say."""
    return value.dtype.kind != "f" or math.isfinite(np.vdot(value, value)) or bool(np.isfinite(value).all())


def _fits(acceptance: Acceptance, name: str, value: object, batch: int) -> bool:
    """A parameter of the rule: a number, `[B]`, or a table `[B, K]`."""
    if name == TABLE and acceptance.kind is AcceptanceKind.JS:
        points = value.shape[-1] if isinstance(value, np.ndarray) and value.ndim == 2 else 0
        return points > 1 and _is_numbers(value, (batch, points))
    return name in acceptance.kind.params and (_is_number(value) or _is_numbers(value, (batch,)))
