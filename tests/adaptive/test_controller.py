from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from adaptive.check import ToyEngine
from adaptive.contract import AcceptanceKind, Decision, DraftProgress, Needs, StepReport
from adaptive.controller import SPARE_DECISIONS, AdaptiveController
from adaptive.guard import GuardConfig
from adaptive.requests import Output, Request, Sampling
from policies import EmaTiers, Fixed
from tests.adaptive.scripted import Scripted, always, fail, view_of

PROMPTS = [[1, 2], [3], [4, 5, 6], [7], [8], [9]]
SHORT = Sampling(max_tokens=20)


def plain_tokens(prompt: Sequence[int], count: int = 20) -> tuple[int, ...]:
    return AdaptiveController(ToyEngine(), "fixed:0").generate(prompt, Sampling(max_tokens=count))[0].tokens


def drain(controller: AdaptiveController, steps: int = 200) -> list[Output]:
    return [output for _ in range(steps) for output in controller.step()]


def tokens_of(outputs: Sequence[Output], name: str) -> tuple[int, ...]:
    return tuple(token for output in outputs if output.request_id == name for token in output.tokens)


# --- generate, stream, submit -----------------------------------------------------------------------------------------


def test_generate_answers_in_the_order_of_prompts() -> None:
    controller = AdaptiveController(ToyEngine(max_batch=2), EmaTiers())
    lengths = [20, 1, 7, 3, 12, 5]
    answers = controller.generate(PROMPTS, [Sampling(max_tokens=length) for length in lengths])
    assert [answer.tokens for answer in answers] == [
        plain_tokens(prompt, length) for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    assert all(answer.finish_reason == "length" and answer.stats is not None for answer in answers)
    assert answers[1].text == f"{answers[1].tokens[0]} "


def test_generate_takes_one_prompt_or_none() -> None:
    controller = AdaptiveController(ToyEngine(), "fixed:2")
    assert [answer.tokens for answer in controller.generate([3], SHORT)] == [plain_tokens([3])]
    assert controller.generate([], SHORT) == []
    with pytest.raises(ValueError, match="2 samplings do not fit 1 prompts"):
        controller.generate([3], [SHORT, SHORT])


def test_generate_leaves_other_peoples_outputs_to_step() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(3))
    early = controller.submit([7], SHORT)
    assert controller.generate([1, 2], Sampling(max_tokens=60))[0].tokens == plain_tokens([1, 2], 60)
    outputs = list(controller.step())
    assert tokens_of(outputs, early) == plain_tokens([7])
    assert outputs[-1].finished
    assert drain(controller) == []


def test_stream_yields_as_it_comes_while_others_step() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    other = controller.submit([7], SHORT)
    seen: list[Output] = []
    others: list[Output] = []
    for output in controller.stream([3], SHORT):
        seen.append(output)
        others += controller.step()
    others += drain(controller)
    assert len(seen) > 3
    assert tuple(token for output in seen for token in output.tokens) == plain_tokens([3])
    assert tokens_of(others, other) == plain_tokens([7])
    assert {output.request_id for output in others} == {other}


def test_stream_that_is_closed_cancels_its_request() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    stream = controller.stream([3], Sampling(max_tokens=10_000))
    assert len(list(islice(stream, 3))) == 3
    stream.close()
    steps = controller.stats().steps
    assert drain(controller, 5) == []
    assert controller.stats().steps == steps


class Interrupted(ToyEngine):
    """Ctrl-C at the third step."""

    def step(self) -> Sequence[Output]:
        if self._step == 3:
            self._step += 1
            raise KeyboardInterrupt
        return super().step()


def test_interrupted_generate_cancels_its_own_requests_only() -> None:
    controller = AdaptiveController(Interrupted(), Fixed(1))
    other = controller.submit([7], SHORT)
    with pytest.raises(KeyboardInterrupt):
        controller.generate(PROMPTS[:2], Sampling(max_tokens=1000))
    outputs = drain(controller, 40)
    assert {output.request_id for output in outputs} == {other}
    assert tokens_of(outputs, other) == plain_tokens([7])


def test_generate_with_a_refused_prompt_leaves_nothing_running() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    with pytest.raises(ValueError, match="give at least one token id"):
        controller.generate([[1], []], Sampling(max_tokens=1000))
    assert drain(controller, 5) == []
    assert controller.stats().steps == 0


def test_cancel_ends_a_submitted_request() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    name = controller.submit([7], Sampling(max_tokens=1000), id="mine")
    controller.step()
    controller.cancel(name)
    assert name == "mine"
    assert [output.finish_reason for output in drain(controller, 4)] == ["cancelled"]


def test_request_options_reach_the_engine() -> None:
    class Keeping(ToyEngine):
        seen: Request

        def submit(self, request: Request) -> str:
            self.seen = request
            return super().submit(request)

    engine = Keeping()
    controller = AdaptiveController(engine, Fixed(1), allow_lossy=True)
    options = {"tpot_slo_ms": 30.0, "slo_class": "chat", "allow_lossy": True, "speculation": False}
    controller.generate([1], SHORT, tpot_slo_ms=30.0, slo_class="chat", allow_lossy=True, speculation=False)
    assert {name: getattr(engine.seen, name) for name in options} == options
    assert controller.stats().drafted == 0


def test_lossy_requests_take_the_operators_consent() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    for call in (controller.generate, controller.submit):
        with pytest.raises(ValueError, match=r"AdaptiveController\(\.\.\., allow_lossy=True\)"):
            call([1], SHORT, allow_lossy=True)


# --- policies ---------------------------------------------------------------------------------------------------------


def test_policy_by_name_object_and_nonsense() -> None:
    assert AdaptiveController(ToyEngine()).stats().policy == "ema"
    controller = AdaptiveController(ToyEngine(), "fixed:3")
    controller.generate([1], SHORT)
    assert controller.stats().policy == "fixed:3"
    assert controller.stats().gamma_histogram.keys() == {3}
    for nonsense in (Fixed, 3, None):
        with pytest.raises(ValueError, match="is not a policy"):
            AdaptiveController(ToyEngine(), nonsense)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gamma=5 is not offered"):
        AdaptiveController(ToyEngine(), "fixed:5")


def test_swap_takes_over_at_the_next_step_with_prepared_graphs() -> None:
    engine = ToyEngine()
    controller = AdaptiveController(engine, Fixed(1))
    controller.submit([1], Sampling(max_tokens=1000))
    controller.step()
    first, new = controller.policy, Fixed(4)
    controller.policy = new
    assert (controller.policy, len(engine.prepared)) == (first, 1)
    controller.step()
    assert controller.policy is new
    assert engine.prepared[-1].gammas == {1: (0, 4), 2: (0, 4), 4: (0, 4)}
    assert controller.stats().gamma_histogram == {1: 1, 4: 1}
    assert controller.stats().switches == 1


def test_bad_policy_is_refused_and_the_old_one_goes_on() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(1))
    with pytest.raises(ValueError, match="gamma=7 is not offered"):
        controller.policy = Fixed(7)
    with pytest.raises(ValueError, match="needs acceptances"):
        controller.policy = Scripted(needs={"acceptances": frozenset({AcceptanceKind.STANDARD, AcceptanceKind.JS})})
    assert controller.generate([1], SHORT)[0].tokens == plain_tokens([1])
    assert controller.stats().gamma_histogram.keys() == {1}


def test_setting_the_present_policy_calls_off_a_swap() -> None:
    policy = Scripted()
    controller = AdaptiveController(ToyEngine(), policy)
    controller.policy = Fixed(1)
    controller.policy = policy
    controller.generate([1], SHORT)
    assert controller.stats().gamma_histogram.keys() == {2}
    assert policy.bound == 1


def test_engine_that_can_not_prepare_keeps_the_old_policy() -> None:
    class Full(ToyEngine):
        def prepare(self, needs: Needs) -> None:
            if self.prepared:
                raise MemoryError("no room for more graphs")
            super().prepare(needs)

    controller = AdaptiveController(Full(), Fixed(1))
    controller.policy = Fixed(4)
    assert controller.generate([1], SHORT)[0].tokens == plain_tokens([1])
    stats = controller.stats()
    assert (stats.policy, stats.policy_errors, stats.last_error) == (
        "Fixed",
        {"prepare": 1},
        "prepare: MemoryError: no room for more graphs",
    )
    assert stats.gamma_histogram.keys() == {1}


def test_an_interrupted_preparation_is_made_up_for() -> None:
    class Slow(ToyEngine):
        def prepare(self, needs: Needs) -> None:
            super().prepare(needs)
            if len(self.prepared) == 2:
                raise KeyboardInterrupt

    controller = AdaptiveController(Slow(), Fixed(1))
    controller.policy = Fixed(4)
    with pytest.raises(KeyboardInterrupt):
        controller.generate([1], SHORT)
    controller.generate([1], SHORT)
    assert controller.stats().gamma_histogram.keys() == {4}


@pytest.mark.parametrize(("lag", "delay"), [(0, 0), (2, 0), (2, 1), (0, 2)])
def test_late_reports_go_to_the_policy_that_decided(lag: int, delay: int) -> None:
    first, second = Scripted(always(3)), Scripted(always(1))
    controller = AdaptiveController(ToyEngine(lag=lag, delay=delay), first)
    for prompt in PROMPTS[:3]:
        controller.submit(prompt, SHORT)
    for _ in range(4):
        controller.step()
    controller.policy = second
    drain(controller, 60)
    assert [view.step for view, _, _ in first.learnt] == first.decided == [0, 1, 2, 3]
    assert [view.step for view, _, _ in second.learnt] == second.decided[: len(second.decided) - delay]
    for policy, gamma in ((first, 3), (second, 1)):
        assert all(decision.gamma == report.gamma == gamma for _, decision, report in policy.learnt)
        assert all(report.step == view.step + delay for view, _, report in policy.learnt)
    assert controller.stats().unmatched == delay


def test_forget_reaches_every_policy_that_still_awaits_reports() -> None:
    first, second = Scripted(always(0)), Scripted(always(0))
    engine = ToyEngine(lag=2)
    controller = AdaptiveController(engine, first)
    controller.submit([1], Sampling(max_tokens=3))
    controller.submit([2], Sampling(max_tokens=30))
    for _ in range(3):
        controller.step()
    controller.policy = second
    drain(controller, 60)
    assert (first.forgotten, second.forgotten) == ([], [0, 1])
    controller.plan(view_of(1, step=100))
    controller.policy = first
    controller.step()
    controller.forget([0])
    assert (first.forgotten, second.forgotten) == ([0], [0, 1, 0])


def test_executed_gamma_is_what_the_policy_learns_from() -> None:
    policy = Scripted(always(4))
    controller = AdaptiveController(ToyEngine(), policy)
    controller.plan(view_of(1))
    one = np.array([1])
    controller.report(StepReport(0, 2, one - 1, one > 0, one, one, one, one))
    assert policy.learnt[0][1] == Decision(2)


def test_decisions_that_are_never_reported_are_dropped() -> None:
    policy = Scripted()
    controller = AdaptiveController(ToyEngine(lag=2), policy)
    for step in range(100):
        controller.plan(view_of(1, step))
    one = np.array([1])
    for step in range(100):
        controller.report(StepReport(step, 2, one - 1, one > 0, one, one, one, one))
    assert len(policy.learnt) == SPARE_DECISIONS + 2
    assert controller.stats().unmatched == 100 - len(policy.learnt)


@pytest.mark.parametrize("method", ["decide", "learn", "forget"])
@pytest.mark.parametrize("lag", [0, 2])
def test_policy_that_raises_never_stops_decoding(method: str, lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Scripted(always(2))
    monkeypatch.setattr(policy, method, fail)
    controller = AdaptiveController(ToyEngine(lag=lag), policy)
    answers = controller.generate(PROMPTS, SHORT)
    drain(controller, 3)
    assert [answer.tokens for answer in answers] == [plain_tokens(prompt) for prompt in PROMPTS]
    stats = controller.stats()
    assert stats.policy_errors[method] > 1
    assert stats.last_error == f"{method}: RuntimeError: broken on purpose"


@pytest.mark.parametrize("answer", [None, Decision(-3), Decision(math.nan), Decision(10**9), Decision(2, verify=3)])  # type: ignore[arg-type]
def test_policy_that_answers_nonsense_never_stops_decoding(answer: Decision | None) -> None:
    controller = AdaptiveController(ToyEngine(), Scripted(lambda view: answer))
    assert controller.generate([3], SHORT)[0].tokens == plain_tokens([3])
    assert controller.stats().clamped
    assert controller.stats().last_error


def test_kill_switch_decodes_plainly_until_lifted() -> None:
    policy = Scripted(always(3))
    controller = AdaptiveController(ToyEngine(), policy)
    controller.speculation = False
    assert controller.generate([3], SHORT)[0].tokens == plain_tokens([3])
    assert (policy.decided, policy.learnt) == ([], [])
    stats = controller.stats()
    assert (stats.drafted, stats.reasons, stats.tau) == (0, {"off": 20}, 1.0)
    assert policy.forgotten == [0]
    controller.speculation = True
    controller.generate([3], SHORT)
    assert policy.learnt
    assert controller.stats().drafted > 0


def test_dwell_of_the_guard_applies() -> None:
    flapping = Scripted(lambda view: Decision(view.step % 2 + 1))
    controller = AdaptiveController(ToyEngine(skill=0.0), flapping, guard=GuardConfig(dwell=5))
    controller.generate([3], SHORT)
    stats = controller.stats()
    assert 0 < stats.switches <= 4
    assert stats.held > 5


# --- stats ------------------------------------------------------------------------------------------------------------


def test_stats_add_up() -> None:
    controller = AdaptiveController(ToyEngine(lag=2, skill=0.6), EmaTiers())
    assert math.isnan(controller.stats().tau)
    answers = controller.generate(PROMPTS, Sampling(max_tokens=100))
    drain(controller, 3)
    stats = controller.stats()
    parts = [answer.stats for answer in answers if answer.stats is not None]
    assert stats.tokens == 600
    assert stats.row_steps == sum(part.steps for part in parts)
    assert (stats.drafted, stats.accepted) == (sum(p.drafted for p in parts), sum(p.accepted for p in parts))
    assert (sum(stats.verified_by_position), sum(stats.accepted_by_position)) == (stats.verified, stats.accepted)
    assert sum(stats.gamma_histogram.values()) == sum(stats.reasons.values()) == stats.steps
    assert stats.tau == 600 / stats.row_steps
    assert stats.alpha == stats.accepted / stats.drafted
    assert 0 < stats.control_us < 1e5


def test_stats_become_json() -> None:
    controller = AdaptiveController(ToyEngine(), Fixed(2))
    controller.generate([1], SHORT)
    record = json.loads(json.dumps(controller.stats().to_dict()))
    assert record["policy"] == "Fixed"
    assert record["gamma_histogram"] == {"2": record["steps"]}
    assert record["tau"] == controller.stats().tau


def test_clock_measures_the_controllers_own_time() -> None:
    ticks = iter(range(10_000))
    controller = AdaptiveController(ToyEngine(), Fixed(1), clock=lambda: float(next(ticks)))
    controller.generate([1], SHORT)
    assert controller.stats().control_us == 2e6


def test_what_trim_answers_is_the_decision_that_was_executed() -> None:
    class Trimming(Scripted):
        def trim(self, progress: DraftProgress) -> int:
            return 3

        def clone(self) -> Trimming:
            return Trimming(self.script, self.gammas, self.needs)

    class Asking(ToyEngine):
        def __init__(self) -> None:
            super().__init__()
            self._caps = replace(self._caps, verify_budget=True, stepwise=True)

    policy = Trimming(always(4), needs={"trim": True})
    controller = AdaptiveController(Asking(), policy)
    controller.plan(view_of(1))
    controller.plan(view_of(1, step=1))
    one = np.array([1])
    assert controller.trim(DraftProgress(3, one - 1, {})) == 3
    for step in (0, 1):
        controller.report(StepReport(step, 4, one - 1, one > 0, one, one, one, one))
    assert [decision.verify for _, decision, _ in policy.learnt] == [None, 3]
