"""Another policy's decisions, judged by an acceptance rule of one's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self, runtime_checkable

from adaptive.contract import (
    Acceptance,
    AcceptanceKind,
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    IntArray,
    Needs,
    Policy,
    StepReport,
    StepView,
)


@runtime_checkable
class _Extending(Protocol):
    def extend(self, progress: DraftProgress) -> BoolArray: ...


@runtime_checkable
class _Telling(Protocol):
    def metrics(self) -> Mapping[str, float]: ...


@runtime_checkable
class _Trimming(Protocol):
    def trim(self, progress: DraftProgress) -> int | IntArray | None: ...


class Relaxed:
    """Whatever `policy` decides, with drafts accepted by `kind` (docs/acceptance.md) on rows that allow it.

    `params` are numbers for the rule's parameters; those not named keep their defaults. ValueError for a parameter
    that the rule does not have; `bind` refuses engines that do not offer the rule.

    >>> from adaptive.contract import STANDARD, Capabilities
    >>> from policies import Fixed
    >>> policy = Relaxed(Fixed(4), AcceptanceKind.TYPICAL, epsilon=0.1)
    >>> caps = Capabilities((0, 4), (1,), acceptances=frozenset({STANDARD.kind, AcceptanceKind.TYPICAL}))
    >>> sorted(policy.bind(caps).acceptances)
    [<AcceptanceKind.STANDARD: 'standard'>, <AcceptanceKind.TYPICAL: 'typical'>]
    """

    def __init__(self, policy: Policy, kind: AcceptanceKind, **params: float) -> None:
        unknown = sorted(set(params) - set(kind.params))
        if unknown:
            raise ValueError(f"acceptance {kind} has no parameter {unknown[0]!r}: it takes {list(kind.params)}")
        self.policy = policy
        self.kind = kind
        self.params = params
        self._acceptance = Acceptance(kind, params)

    def bind(self, caps: Capabilities) -> Needs:
        needs = self.policy.bind(caps)
        if self.kind not in caps.acceptances:
            raise ValueError(
                f"acceptance {self.kind} is not offered by this engine with its drafter {list(caps.drafters)}: choose "
                f"from {sorted(map(str, caps.acceptances))}"
            )
        return replace(needs, acceptances=needs.acceptances | {self.kind})

    def decide(self, view: StepView) -> Decision:
        decision = self.policy.decide(view)
        if decision.gamma == 0 or decision.tree is not None:
            return decision
        return replace(decision, acceptance=self._acceptance)

    def extend(self, progress: DraftProgress) -> BoolArray:
        assert isinstance(self.policy, _Extending), "asked only where the policy sets Needs.stepwise"
        return self.policy.extend(progress)

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        assert isinstance(self.policy, _Trimming), "asked only where the policy sets Needs.trim"
        return self.policy.trim(progress)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.policy.learn(view, decision, report)

    def forget(self, rows: Sequence[int]) -> None:
        self.policy.forget(rows)

    def metrics(self) -> Mapping[str, float]:
        return self.policy.metrics() if isinstance(self.policy, _Telling) else {}

    def clone(self) -> Self:
        return type(self)(self.policy.clone(), self.kind, **self.params)
