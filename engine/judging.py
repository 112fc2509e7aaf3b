"""Which acceptance rule judges a step, and which rules an engine offers. The host's part of `engine/sampling/`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from adaptive.contract import AcceptanceKind, DrafterCaps, Signal
from engine.sampling.distribution import Sampler
from engine.sampling.rules import RULES

if TYPE_CHECKING:
    from engine.request_state import RequestState

EXACT = frozenset({AcceptanceKind.STANDARD, AcceptanceKind.BLOCK})


def offered(drafter: DrafterCaps | None) -> frozenset[AcceptanceKind]:
    """The exact rules, and those whose signals the drafter has."""
    if drafter is None:
        return EXACT
    return EXACT.union(kind for kind, rule in RULES.items() if rule.needs <= drafter.signals)


def rule_signals(kinds: Collection[AcceptanceKind]) -> frozenset[Signal]:
    """What these rules need of a step."""
    return frozenset[Signal]().union(*(RULES[kind].needs for kind in kinds if kind in RULES))


def sampler_of(batch: Sequence[RequestState]) -> Sampler:
    """The least that a step must be able to do for these requests."""
    sampled = [request.request.sampling for request in batch if not request.request.sampling.greedy]
    if not sampled:
        return Sampler.GREEDY
    filtered = any(sampling.top_k or sampling.top_p < 1 for sampling in sampled)
    return Sampler.FILTERED if filtered else Sampler.PLAIN


def rule_of(kind: AcceptanceKind, batch: Sequence[RequestState], sampler: Sampler) -> AcceptanceKind:
    """The rule decided on, or `standard` where that is the same: exact rules agree on greedy rows, and a rule that is
    not exact acts on rows that allow it alone."""
    if kind.lossless:
        return AcceptanceKind.STANDARD if sampler is Sampler.GREEDY else kind
    return kind if any(request.request.allow_lossy for request in batch) else AcceptanceKind.STANDARD
