from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep

import psutil
import pytest

from adaptive.benchmark import (
    CpuMeter,
    Measurement,
    PolicyArm,
    PromptItem,
    Run,
    ask,
    foreign_cpu,
    measure,
    summarize,
    units,
)
from adaptive.benchmark.probe import ProbedEngine
from adaptive.controller import AdaptiveController
from adaptive.requests import RequestStats, Sampling
from policies import Fixed
from tests.adaptive.cli.toy import ToyEngine

ITEMS = [PromptItem("1", "first one", "a"), PromptItem("2", "second", "b"), PromptItem("3", "third", "a")]


@dataclass
class Noted:
    """An arm that notes when it ran."""

    label: str
    log: list[tuple[str, list[str], int]]
    drafter: str | None = None
    run_s: float = 1.0
    tokens: tuple[int, ...] = (1, 2)
    stats: tuple[RequestStats, ...] = field(default=())

    @property
    def shown(self) -> str:
        return self.label

    def run(self, items: Sequence[PromptItem], sampling: Sampling) -> Run:
        self.log.append((self.label, [item.id for item in items], sampling.max_tokens))
        return Run(self.run_s, 0.0, {item.id: self.tokens for item in items}, self.stats)


def test_arms_are_interleaved_in_changing_order_after_a_short_warm_up() -> None:
    log: list[tuple[str, list[str], int]] = []
    arms = [Noted(name, log) for name in "xyz"]
    told: list[str] = []
    results = measure(arms, ITEMS, Sampling(max_tokens=50), 2, told.append)
    assert log[:3] == [(name, ["1"], 8) for name in "xyz"]
    measured = [(label, ids) for label, ids, tokens in log[3:] if tokens == 50]
    first, second = ["1", "3"], ["2"]
    assert measured == [
        *[(name, first) for name in "xyz"],
        *[(name, second) for name in "xzy"],
        *[(name, first) for name in "xzy"],
        *[(name, second) for name in "zxy"],
    ]
    assert len(told) == len(log) == units(arms, ITEMS, 2)
    assert [(one.repeat, one.task, one.arm) for one in results[:4]] == [
        (0, "a", "x"),
        (0, "a", "y"),
        (0, "a", "z"),
        (0, "b", "x"),
    ]


def test_ratios_are_paired_within_a_repeat() -> None:
    """The machine halves its speed in the second repeat; the ratio does not see it."""
    times = {
        ("fixed:0", 0): 4.0,
        ("ema", 0): 2.0,
        ("fixed:0", 1): 8.0,
        ("ema", 1): 4.0,
        ("fixed:0", 2): 4.0,
        ("ema", 2): 1.0,
    }
    results = [
        Measurement(repeat, "a", arm, Run(seconds, 0.1 * repeat, {"1": (1, 2, 3, 4)}))
        for (arm, repeat), seconds in times.items()
    ]
    _, ema = summarize([Noted("fixed:0", []), Noted("ema", [])], results, comparable=True)
    ratio = ema.overall.ratio
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 4.0)
    assert ema.overall.tokens_per_s == 12 / 7
    assert ema.tasks["a"] == ema.overall
    others = foreign_cpu(results)
    assert others.worst == pytest.approx(0.2)
    assert others.mean == pytest.approx((0.1 * 12 + 0.2 * 5) / 23)
    assert not others.too_high


def test_acceptance_is_pooled_over_requests() -> None:
    long = RequestStats(9, 12, 1.0, 10.0, 4, 12, 8, drafted_by_position=(4, 4, 4), accepted_by_position=(4, 3, 1))
    short = RequestStats(9, 2, 3.0, 30.0, 1, 1, 1, drafted_by_position=(1,), accepted_by_position=(1,))
    run = Run(2.0, 0.0, {"1": (0,) * 12, "2": (0,) * 2}, (long, short), itl_ms=(1.0, 3.0))
    (summary,) = summarize([Noted("fixed:0", [])], [Measurement(0, "a", "fixed:0", run)], comparable=True)
    figures = summary.overall
    assert (figures.tau, figures.alpha, figures.wasted) == (14 / 5, 9 / 13, 4)
    assert figures.alpha_by_position == (1.0, 3 / 4, 1 / 4)
    assert (figures.tpot_ms, figures.ttft_ms, figures.itl_p50_ms) == (20.0, 2.0, 2.0)


def test_a_differing_request_counts_once_however_often_it_differs() -> None:
    results = [
        Measurement(repeat, "a", arm, Run(1.0, 0.0, {"1": (1, 2), "2": (7,) if arm == "ema" else (8,)}))
        for repeat in range(3)
        for arm in ("fixed:0", "ema")
    ]
    plain, ema = summarize([Noted("fixed:0", []), Noted("ema", [])], results, comparable=True)
    assert (plain.mismatches, ema.mismatches) == (0, 1)


def test_a_policy_arm_starts_afresh_and_says_what_was_decided() -> None:
    policy = Fixed(2)
    arm = PolicyArm("fixed:2", policy, ToyEngine(), "ngram")
    first = arm.run([ITEMS[0]], Sampling(max_tokens=5))
    second = arm.run([ITEMS[0]], Sampling(max_tokens=5))
    assert first.tokens == second.tokens == {"1": tuple(map(ord, "FIRST"))}
    assert [(step.gamma, step.accepted, step.reason) for step in first.steps] == [(2, 2, "fixed"), (2, 1, "fixed")]
    assert first.controller_s > 0
    assert len(first.itl_ms) == 1


def test_the_probe_sees_every_step_of_a_batch() -> None:
    engine = ProbedEngine(ToyEngine())
    answers = ask(AdaptiveController(engine, policy="fixed:3"), ITEMS, Sampling(max_tokens=5, seed=3))
    assert [answer.text for answer in answers] == ["FIRST", "SECON", "THIRD"]
    probe = engine.probe
    assert probe.planned == len(probe.steps) == 2
    assert [step.rows for step in probe.steps] == [3, 3]
    assert sum(step.accepted for step in probe.steps) == sum(one.stats.accepted for one in answers if one.stats)


def test_no_more_requests_are_in_flight_than_asked_for() -> None:
    engine = ToyEngine()
    in_flight: list[int] = []
    ask(
        AdaptiveController(engine, policy="fixed:0"),
        ITEMS,
        Sampling(max_tokens=2),
        lambda answer, output: in_flight.append(len(engine.prompts)),
        concurrency=1,
    )
    assert in_flight == [1, 1, 2, 2, 3, 3]


def test_a_failing_engine_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ToyEngine()
    controller = AdaptiveController(engine, policy="fixed:0")

    def broken() -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "step", broken)
        with pytest.raises(RuntimeError, match="broken"):
            ask(controller, ITEMS, Sampling(max_tokens=2))
    assert controller.step() == []


def test_own_work_is_not_foreign_and_others_work_is() -> None:
    with CpuMeter() as own:
        end = perf_counter() + 0.4
        while perf_counter() < end:
            pass
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        sleep(0.1)
        with CpuMeter() as foreign:
            sleep(0.6)
    finally:
        burner.kill()
        burner.wait()
    one_core = 1 / (psutil.cpu_count() or 1)
    assert own.seconds == pytest.approx(0.4, abs=0.2)
    assert 0 <= own.foreign <= 1
    # The burner has at least a fair share of one core, however busy the machine is.
    assert foreign.foreign > 0.3 * one_core
