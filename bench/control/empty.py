"""A policy that does nothing: what is left of the cost is the controller's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView

ONE = Decision(1, reason="empty")


class Empty:
    """Always γ = 1, the same decision object each time."""

    def bind(self, caps: Capabilities) -> Needs:
        return Needs.everywhere(caps, (1,), self_paced=True)

    def decide(self, view: StepView) -> Decision:
        return ONE

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """Nothing is learnt."""

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> Self:
        return type(self)()
