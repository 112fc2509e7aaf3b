"""What is captured is what the policy in charge needs, and a new policy's part at the step edge where it takes over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from adaptive import AdaptiveController
from adaptive.check import check_engine
from adaptive.check.levers import LEVER_CHECKS
from adaptive.check.running import Bench
from adaptive.check.suite import run_checks
from adaptive.contract import (
    DRAFT_SIGNALS,
    BoolArray,
    Capabilities,
    Confidence,
    Decision,
    DraftProgress,
    DraftStop,
    FloatArray,
    IntArray,
    Needs,
    Signal,
    StepReport,
    StepView,
)
from adaptive.requests import Sampling
from engine.control import StepControl
from engine.drafting import DraftWatch
from engine.runner import StepRunner
from engine.step import StepKey
from policies import Fixed
from tests.engine.rehearsing import RehearsingBackend
from tests.engine.test_model_drafter import NEAR
from tests.engine.tiny import tiny_engine

PROMPTS = [[1, 2, 3], [4], [5, 6]]
LONG = Sampling(max_tokens=30)


class Steered(Fixed):
    """γ as fixed, with whatever levers are named."""

    def __init__(self, gamma: int, levers: tuple[str, ...] = ()) -> None:
        super().__init__(gamma)
        self.levers = levers

    def bind(self, caps: Capabilities) -> Needs:
        signals: frozenset[Signal] = frozenset({"margin"}) if {"stop", "confidence"} & {*self.levers} else frozenset()
        needs = super().bind(caps)
        return replace(needs, signals=signals, stepwise="extend" in self.levers, budget="budget" in self.levers)

    def decide(self, view: StepView) -> Decision:
        plain = super().decide(view)
        pulled: dict[str, Any] = {}
        if "budget" in self.levers:
            pulled["verify"] = len(view.rows) * 2
        if "confidence" in self.levers:
            pulled["confidence"] = Confidence("margin", np.ones(plain.gamma), np.zeros(plain.gamma))
        if "stop" in self.levers:
            pulled["draft_stop"] = DraftStop("margin", 0.3)
        return replace(plain, **pulled)

    def extend(self, progress: DraftProgress) -> BoolArray:
        even: BoolArray = progress.rows % 2 == 0
        return even


LEVERS = [("budget",), ("stop",), ("extend",), ("budget", "confidence"), ("budget", "confidence", "stop", "extend")]


@pytest.mark.parametrize("levers", LEVERS, ids="+".join)
def test_a_swap_captures_what_is_missing_at_the_step_edge(
    levers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RehearsingBackend()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: backend)
    engine = tiny_engine(max_batch=2, max_gamma=3, draft_model=NEAR, prefill_chunk=64)
    controller = AdaptiveController(engine, Fixed(3))
    plain = controller.generate(PROMPTS, LONG)
    keys = set(engine.runner._bundles)
    assert not any(key.signals or key.trimmed for key in keys)
    for prompt in PROMPTS[:2]:
        controller.submit(prompt, LONG)
    outputs = [output for _ in range(2) for output in controller.step()]
    before = backend.captures
    controller.policy = Steered(3, levers=levers)
    assert backend.captures == before, "nothing happens before the step edge"
    outputs += controller.step()
    after = backend.captures
    assert after > before
    while engine.scheduler.running:
        outputs += controller.step()
    assert backend.captures == after, "all of it was captured at once"
    new = {key for key in engine.runner._bundles if key not in keys}
    assert {key.trimmed for key in new} == {"budget" in levers or "extend" in levers}
    signals: set[str] = {"margin"} if {"stop", "confidence"} & {*levers} else set()
    assert {key.signals for key in new} == {frozenset(signals)}
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        tokens.setdefault(output.request_id, []).extend(output.tokens)
    assert [tuple(one) for one in tokens.values()] == [answer.tokens for answer in plain[:2]]
    stats = controller.stats()
    assert (stats.clamped, stats.policy_errors) == ({}, {})
    assert stats.verified < stats.drafted or "budget" not in levers


def test_a_policy_that_needs_what_there_is_not_raises_at_once_and_the_old_one_goes_on() -> None:
    controller = AdaptiveController(tiny_engine(max_batch=2), Fixed(2))
    old = controller.policy
    for levers, message in ((("stop",), r"signals \['margin'\]: the engine offers"), (("extend",), "stepwise engine")):
        with pytest.raises(ValueError, match=message):
            controller.policy = Steered(2, levers=levers)
        assert controller.policy is old
    controller.generate(PROMPTS, LONG)
    assert controller.stats().policy == "Fixed"
    controller.policy = Steered(2, levers=("budget",))
    controller.generate(PROMPTS, LONG)
    assert controller.stats().policy == "Steered"


def test_an_engine_that_can_not_prepare_keeps_the_old_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(max_batch=2, draft_model=NEAR)
    controller = AdaptiveController(engine, Fixed(2))

    def full(runner: StepRunner, needs: Needs) -> None:
        raise MemoryError("no room for more graphs")

    monkeypatch.setattr(StepRunner, "_record", full)
    controller.policy = Steered(2, levers=("budget", "stop"))
    controller.generate(PROMPTS, LONG)
    assert controller.stats().policy_errors == {"prepare": 1}
    assert not any(key.signals or key.trimmed for key in engine.runner._bundles)


# --- the conformance suite finds an engine that does not do as it is told --------------------------------------------


def pull_levers() -> tuple[str, ...]:
    bench = Bench(lambda: tiny_engine(max_batch=2, max_gamma=3, draft_model=NEAR), ((1, 2, 3), (4,)), Sampling(8))
    return run_checks("engine", {check.__name__: partial(check, bench) for check in LEVER_CHECKS})


def test_the_suite_tries_every_lever() -> None:
    assert len(pull_levers()) == len(LEVER_CHECKS)
    names = {"keeps budgets", "keeps row lengths", "reports signals", "stops at thresholds", "asks between draft steps"}
    assert names | {"asks after drafting"} <= set(
        check_engine(lambda: tiny_engine(max_batch=2, max_gamma=2, draft_model=NEAR), max_tokens=6)
    )


HONEST = StepRunner._reported


def ignore(control: StepControl, write: object, decision: Decision, rows: IntArray) -> None:
    """Does not aim."""


def never_ask(watch: DraftWatch, controller: object, position: int, lens: IntArray, packed: object) -> IntArray:
    return lens


def tell_all(
    runner: StepRunner, key: StepKey, rows: IntArray, drafted: IntArray, verified: IntArray
) -> dict[Signal, FloatArray]:
    return dict.fromkeys(key.signals, np.zeros((len(rows), key.gamma)))


def tell_little(
    runner: StepRunner, key: StepKey, rows: IntArray, drafted: IntArray, verified: IntArray
) -> dict[Signal, FloatArray]:
    told = HONEST(runner, key, rows, drafted, verified)
    return {name: values for name, values in told.items() if name not in DRAFT_SIGNALS}


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "complaints"),
    [
        (StepControl, "aim", ignore, ["_keeps_budgets", "_keeps_row_lengths", "although the first one's"]),
        (DraftWatch, "_extended", never_ask, ["extend was never called"]),
        (StepRunner, "_reported", tell_all, ["is not nan exactly where"]),
        (StepRunner, "_reported", tell_little, ["does not report"]),
    ],
    ids=["deaf", "silent", "all numbers", "too few"],
)
def test_the_suite_finds(
    owner: type, name: str, mutant: object, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(AssertionError) as failure:
        pull_levers()
    for complaint in complaints:
        assert complaint in str(failure.value)


def test_reports_reach_the_policy_with_their_signals() -> None:
    seen: list[StepReport] = []

    class Learning(Steered):
        def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
            seen.append(report)

    controller = AdaptiveController(tiny_engine(draft_model=NEAR), Learning(3, levers=("stop",)))
    controller.generate(PROMPTS, LONG)
    assert all(report.signals is not None and report.signals.keys() == {"margin"} for report in seen if report.gamma)
    assert seen
