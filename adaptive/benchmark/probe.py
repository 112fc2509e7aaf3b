"""A measuring stand-in between engine and controller: what a controller costs, and what it decided step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from adaptive.contract import (
    BoolArray,
    Capabilities,
    Controller,
    Decision,
    DraftProgress,
    Engine,
    IntArray,
    Needs,
    StepReport,
    StepView,
)
from adaptive.requests import Output, Request, RequestId


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One executed step, summed over its live rows. `gamma` is the executed one, `reason` the decision's word.

    `depth` is how deep its furthest row drafted: fewer than `gamma` tokens where drafting ended early.
    `draft_s` and `verify_s` are the times of its parts, nan where the engine does not tell.
    """

    gamma: int
    reason: str
    rows: int
    drafted: int
    accepted: int
    draft_s: float = math.nan
    verify_s: float = math.nan
    depth: int = 0


class Probe:
    """A `Controller` that passes every call on, times `plan` and `report`, and keeps one `StepTrace` a step."""

    def __init__(self, inner: Controller) -> None:
        self.seconds = 0.0
        self.planned = 0
        self.steps: list[StepTrace] = []
        self._inner = inner
        self._reasons: dict[int, str] = {}

    def attach(self, caps: Capabilities) -> Needs:
        return self._inner.attach(caps)

    def plan(self, view: StepView) -> Decision:
        start = perf_counter()
        decision = self._inner.plan(view)
        self.seconds += perf_counter() - start
        self.planned += 1
        self._reasons[view.step] = decision.reason
        return decision

    def extend(self, progress: DraftProgress) -> BoolArray:
        return self._inner.extend(progress)

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        return self._inner.trim(progress)

    def report(self, report: StepReport) -> None:
        start = perf_counter()
        self._inner.report(report)
        self.seconds += perf_counter() - start
        live = report.live
        self.steps.append(
            StepTrace(
                gamma=report.gamma,
                reason=self._reasons.pop(report.step, ""),
                rows=int(live.sum()),
                drafted=int(report.drafted[live].sum()),
                accepted=int(report.accepted[live].sum()),
                draft_s=report.draft_s,
                verify_s=report.verify_s,
                depth=int(report.drafted[live].max(initial=0)),
            )
        )

    def forget(self, rows: Sequence[int]) -> None:
        self._inner.forget(rows)


class ProbedEngine:
    """An `Engine` that puts a fresh `Probe` before whichever controller is attached to it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._probe: Probe | None = None

    @property
    def probe(self) -> Probe:
        assert self._probe is not None, "no controller was attached"
        return self._probe

    def capabilities(self) -> Capabilities:
        return self._engine.capabilities()

    def attach(self, controller: Controller) -> None:
        self._probe = Probe(controller)
        self._engine.attach(self._probe)

    def prepare(self, needs: Needs) -> None:
        self._engine.prepare(needs)

    def submit(self, request: Request) -> RequestId:
        return self._engine.submit(request)

    def step(self) -> Sequence[Output]:
        return self._engine.step()

    def cancel(self, request: RequestId) -> None:
        self._engine.cancel(request)
