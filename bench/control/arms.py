"""Policies under measurement: the whole control path of a batch of decoding requests, piece by piece.

The controller is the real one and the views and reports are built by the bundled engine's own observer; only the model
is missing. Its answers come from a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter, perf_counter_ns
from types import SimpleNamespace
from typing import Any

import numpy as np

from adaptive.check.toy import ToyEngine
from adaptive.contract import (
    AcceptanceKind,
    Capabilities,
    Decision,
    DrafterCaps,
    DraftProgress,
    IntArray,
    Policy,
    Signal,
    StepReport,
)
from adaptive.controller import AdaptiveController
from adaptive.requests import Request
from bench.control.trace import Trace
from engine.feedback import Feedback
from engine.observe import Observer
from policies.cost import StepCost

MAX_GAMMA = 16
CONTEXT = 100
LONGEST_ANSWER = 300  # tokens, after which a request leaves its row to another
PIECES = ("view", "plan", "extend", "report", "learn")
COST = StepCost(draft=(1e-3, 0, 0, 0), verify=(2e-2, 0, 1e-5, 1e-8, 0), plain=(2e-2, 1e-5, 1e-8))
"""Seconds of a made-up accelerator, on which drafting pays in batches of hundreds."""
NOISE = 0.03  # of a step's seconds, log-normal

Cost = Mapping[str, int]
"""Nanoseconds of the pieces of one step."""


@dataclass
class Arm:
    """One policy: `step(k)` runs step k once and says what each piece took. `extend` is per call, if there was one."""

    name: str
    step: Callable[[int], Cost]
    costs: list[Cost] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Microseconds per piece, of those that ran: median, mean, 10th and 90th percentile; `all` without `extend`."""
        pieces = {name: spread([cost[name] for cost in self.costs if name in cost]) for name in PIECES}
        whole = [sum(ns for name, ns in cost.items() if name != "extend") for cost in self.costs]
        planned = [cost.get("view", 0) + cost["plan"] for cost in self.costs]
        return {"policy": self.name, **pieces, "view_plan": spread(planned), "all": spread(whole)}


def spread(nanoseconds: list[int]) -> dict[str, float] | None:
    """Microseconds; None where there was nothing to measure."""
    if not nanoseconds:
        return None
    us = np.array(nanoseconds) / 1e3
    low, median, high = np.percentile(us, [10, 50, 90]).round(2).tolist()
    return {"median": median, "mean": round(float(us.mean()), 2), "p10": low, "p90": high}


def capabilities(batch: int, *, stepwise: bool) -> Capabilities:
    """A draft model that tells everything, on an engine that knows every rule."""
    toy = ToyEngine(gammas=tuple(range(MAX_GAMMA + 1)), max_batch=batch).capabilities()
    drafter = DrafterCaps("lm", MAX_GAMMA, signals=frozenset[Signal]({"top_prob", "entropy", "js"}))
    acceptances = frozenset({AcceptanceKind.STANDARD, AcceptanceKind.JS})
    return replace(toy, drafters={"model": drafter}, acceptances=acceptances, stepwise=stepwise)


@dataclass(slots=True)
class Seated:
    """What the observer reads of an `engine.request_state.RequestState`, and as fast to read."""

    row: int
    request: Request
    context_len: int = CONTEXT
    tokens: tuple[int, ...] = ()


class Rig:
    """A full batch of requests under one policy; requests that have got their tokens leave their row to others."""

    def __init__(self, policy: Policy, trace: Trace, batch: int, *, stepwise: bool) -> None:
        caps = capabilities(batch, stepwise=stepwise)
        engine: Any = SimpleNamespace(capabilities=lambda: caps, attach=lambda controller: controller.attach(caps))
        self.controller = AdaptiveController(engine, policy, allow_lossy=True)
        self.needs = self.controller.attach(caps)
        self._trace = trace
        self._observer = Observer(batch, perf_counter)
        self._rng = np.random.default_rng(1)
        self._requests: list[Any] = [Seated(row, Request("x", allow_lossy=True)) for row in range(batch)]
        for request in self._requests:
            self._observer.seat(request)
        # Requests that began at different times end at different times.
        self._left_B = self._rng.integers(1, LONGEST_ANSWER, batch)

    def step(self, k: int) -> Cost:
        """One step, its pieces timed."""
        ns: dict[str, int] = {}
        start = perf_counter_ns()
        view = self._observer.view(self._requests, 0, 0, 0.5, None)
        viewed = perf_counter_ns()
        decision = self.controller.plan(view)
        planned = perf_counter_ns()
        lens_B = self._drafted(k, decision, view.rows, ns)
        feedback = self._feedback(k, lens_B)
        seconds = self._seconds(len(view.rows), int(view.context_lens.sum()), feedback)
        reported = perf_counter_ns()
        report = self._observer.report(view, feedback, 0)
        done = perf_counter_ns()
        ns.update(view=viewed - start, plan=planned - viewed, report=done - reported)
        report = replace(report, step_s=sum(seconds), draft_s=seconds[0], verify_s=seconds[1])
        report.emitted[:] = report.accepted + 1
        self._observer.advance(view, report)
        ns["learn"] = self._learn(report)
        return ns

    def _drafted(self, k: int, decision: Decision, rows: IntArray, ns: dict[str, int]) -> IntArray:
        """Draft tokens of each row, as its entropy and the policy stop it; notes the mean time of a call."""
        lens_B = np.full(len(rows), decision.gamma)
        stop = decision.draft_stop
        if stop is not None and decision.gamma:
            entropy_BG = self._trace.at(stop.signal, k, lens_B, decision.gamma)
            passed_BG = entropy_BG > np.broadcast_to(stop.threshold, len(rows))[:, None]
            lens_B = np.where(passed_BG.any(axis=1), passed_BG.argmax(axis=1) + 1, lens_B)
        if not self.needs.stepwise:
            return lens_B
        spent = []
        for position in range(decision.gamma - 1):
            sure_B = self._trace.at("top_prob", k, lens_B, decision.gamma)[:, position]
            progress = DraftProgress(position, rows, {"top_prob": sure_B})
            start = perf_counter_ns()
            more_B = self.controller.extend(progress)
            spent.append(perf_counter_ns() - start)
            lens_B = np.where(more_B, lens_B, np.minimum(lens_B, position + 1))
            if not more_B.any():
                break
        if spent:
            ns["extend"] = round(sum(spent) / len(spent))
        return lens_B

    def _feedback(self, k: int, lens_B: IntArray) -> Feedback:
        gamma = int(lens_B.max())
        accepted_B = self._trace.accepted(k, lens_B)
        signals = {name: self._trace.at(name, k, lens_B, gamma) for name in self.needs.signals} if gamma else None
        nan = float("nan")
        return Feedback(
            gamma=gamma,
            tree=None,
            tokens=[],
            accepted=accepted_B,
            verified=lens_B,
            drafted=lens_B,
            draft_s=nan,
            verify_s=nan,
            signals=signals,
        )

    def _seconds(self, batch: int, context: int, feedback: Feedback) -> tuple[float, float]:
        """Of drafting and verifying on the made-up accelerator."""
        factor = float(np.exp(NOISE * self._rng.standard_normal()))
        tokens = batch + int(feedback.verified.sum())
        return (
            factor * COST.draft_s(batch, feedback.gamma, context),
            factor * COST.verify_s(batch, tokens, context),
        )

    def _learn(self, report: StepReport) -> int:
        """Taking in the report, and forgetting the requests that ended: nanoseconds of both."""
        self._left_B -= report.emitted
        ended = np.flatnonzero(self._left_B <= 0).tolist()
        start = perf_counter_ns()
        self.controller.report(report)
        if ended:
            self.controller.forget(ended)
        spent = perf_counter_ns() - start
        for row in ended:
            self._observer.seat(self._requests[row])
            self._left_B[row] = LONGEST_ANSWER
        return spent
