"""A policy that does as it is told, for tests of what stands around policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView


def always(gamma: Any) -> Callable[[StepView], Decision]:
    return lambda view: Decision(gamma)


def fail(*arguments: object) -> Any:
    raise RuntimeError("broken on purpose")


@dataclass
class Scripted:
    """`script` decides; everything the policy is told is kept."""

    script: Callable[[StepView], Any] = field(default_factory=lambda: always(2))
    gammas: Iterable[int] | None = None
    needs: dict[str, Any] = field(default_factory=dict)
    decided: list[int] = field(default_factory=list)
    learnt: list[tuple[StepView, Decision, StepReport]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    bound: int = 0

    def bind(self, caps: Capabilities) -> Needs:
        self.bound += 1
        return replace(Needs.everywhere(caps, caps.gammas if self.gammas is None else self.gammas), **self.needs)

    def decide(self, view: StepView) -> Decision:
        self.decided.append(view.step)
        decision: Decision = self.script(view)
        return decision

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.learnt.append((view, decision, report))

    def forget(self, rows: Sequence[int]) -> None:
        self.forgotten += rows

    def clone(self) -> Scripted:
        return Scripted(self.script, self.gammas, self.needs)


def view_of(batch: int, step: int = 0) -> StepView:
    rows = np.arange(batch)
    return StepView(step, step - 1, 0.0, batch, rows, rows + 10, rows)
