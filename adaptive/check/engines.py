"""`check_engine`: does an engine keep its side of the contract?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from adaptive.check import running
from adaptive.check.levers import LEVER_CHECKS
from adaptive.check.recorder import Course
from adaptive.check.running import DEEPEST, PLAIN, Bench, Run, constant, cycle
from adaptive.check.suite import expect, expect_none, run_checks
from adaptive.contract import Capabilities, Decision, Engine, Needs, StepReport, StepView, floor_gamma
from adaptive.controller import AdaptiveController
from adaptive.requests import Prompt, Request, RequestId, Sampling

PROMPTS: tuple[Prompt, ...] = ((1, 2, 3), (4, 5), (7,), (2, 2, 2, 2), (9, 8, 7, 6, 5))


def check_engine(
    engine: Engine | Callable[[], Engine],
    prompts: Sequence[Prompt] = PROMPTS,
    *,
    max_tokens: int = 12,
) -> tuple[str, ...]:
    """Names of the checks that passed. AssertionError with one line for each that failed.

    Each check attaches its own controller to a fresh engine (a factory), or to the same idle one. `prompts` must be
    ones the engine accepts, each with room for `max_tokens` more; they are decoded greedily with `ignore_eos`.
    """
    bench = Bench(engine, tuple(prompts), Sampling(max_tokens=max_tokens, ignore_eos=True))
    checks = (
        _declares_itself,
        _attaches_first,
        _idles,
        _keeps_protocol,
        _obeys_gamma,
        _accounts_for_tokens,
        _ends_on_budget,
        _stays_greedy,
        _honours_opt_out,
        _cancels,
        _swaps_policies,
        *LEVER_CHECKS,
    )
    name = engine.__name__ if isinstance(engine, type) else type(engine).__name__
    named = {check.__name__.strip("_").replace("_", " "): partial(check, bench) for check in checks}
    return run_checks(f"engine {name}", named)


def _declares_itself(bench: Bench) -> None:
    engine = bench.engine()
    caps = engine.capabilities()
    expect(isinstance(caps, Capabilities), f"capabilities() returned {caps!r}")
    expect(caps.lag >= 0 and caps.delay >= 0, f"lag={caps.lag} and delay={caps.delay} must not be negative")
    deepest = max((drafter.max_gamma for drafter in caps.drafters.values()), default=0)
    expect(caps.gammas[-1] <= deepest, f"gammas go to {caps.gammas[-1]} but the drafters only to {deepest}")
    again = engine.capabilities()
    expect(again.gammas == caps.gammas and again.lag == caps.lag, "capabilities() changes between two calls")


def _attaches_first(bench: Bench) -> None:
    run = Run(bench.engine(), PLAIN)
    expect(run.recorder.attached == 1, f"attach called the controller's attach {run.recorder.attached} times, not once")
    expect(run.recorder.plans == 0, "attach called plan")


def _idles(bench: Bench) -> None:
    run = Run(bench.engine(), DEEPEST)
    for _ in range(3):
        run.step()
    expect(run.recorder.plans == 0, "an idle step called plan")


def _keeps_protocol(bench: Bench) -> None:
    engine = bench.engine()
    for course in (PLAIN, DEEPEST, cycle(engine.capabilities())):
        run = Run(engine, course)
        run.all_to_end(bench.requests(engine))
        run.recorder.finish()
        expect_none(run.recorder.violations)
        expect(run.recorder.plans > 0, "nothing was planned although requests were decoded")


def _obeys_gamma(bench: Bench) -> None:
    run = Run(bench.engine(), PLAIN)
    run.all_to_end(bench.requests(run.engine))
    drafted = sum(int(report.drafted.sum()) for report in run.recorder.reports)
    expect(drafted == 0, f"{drafted} tokens were drafted with gamma=0")


def _accounts_for_tokens(bench: Bench) -> None:
    engine = bench.engine()
    run = Run(engine, cycle(engine.capabilities()))
    delivered = sum(map(len, run.all_to_end(bench.requests(engine))))
    emitted = sum(int(report.emitted[report.live].sum()) for report in run.recorder.reports)
    # A request's first token may come from its prompt's step, which is not reported.
    lawful = 0 <= delivered - emitted <= len(run.outputs)
    expect(lawful, f"{delivered} tokens were delivered to {len(run.outputs)} requests, {emitted} reported as emitted")


def _ends_on_budget(bench: Bench) -> None:
    engine = bench.engine()
    for course in (PLAIN, DEEPEST, cycle(engine.capabilities())):
        run = Run(engine, course)
        budgets = range(1, bench.sampling.max_tokens + 1)
        run.all_to_end(
            [
                Request(bench.prompts[budget % len(bench.prompts)], replace(bench.sampling, max_tokens=budget))
                for budget in budgets
            ]
        )
        for budget, (name, outputs) in zip(budgets, run.outputs.items(), strict=True):
            count = len(run.tokens(name))
            expect(count == budget, f"max_tokens={budget} gave {count} tokens")
            reason = outputs[-1].finish_reason
            expect(reason == "length", f"max_tokens={budget} ended with finish_reason={reason!r}, not 'length'")


def _stays_greedy(bench: Bench) -> None:
    engine = bench.engine()
    caps = engine.capabilities()
    plain = Run(engine, PLAIN).all_to_end(bench.requests(engine))
    courses = {f"gamma={gamma}": constant(gamma) for gamma in caps.gammas[1:]}
    for name, course in {**courses, "gamma changing": cycle(caps)}.items():
        tokens = Run(engine, course).all_to_end(bench.requests(engine))
        differing = [place for place, pair in enumerate(zip(plain, tokens, strict=True)) if pair[0] != pair[1]]
        expect(not differing, f"greedy tokens of requests {differing} with {name} are not those of plain decode")


def _honours_opt_out(bench: Bench) -> None:
    run = Run(bench.engine(), DEEPEST)
    run.all_to_end([replace(request, speculation=False) for request in bench.requests(run.engine)])
    drafted = sum(int(report.drafted.sum()) for report in run.recorder.reports)
    expect(drafted == 0, f"{drafted} tokens were drafted for requests with speculation=False")


def _cancels(bench: Bench) -> None:
    engine = bench.engine()
    requests = bench.requests(engine)
    undisturbed = Run(engine, PLAIN).all_to_end(requests)
    run = Run(engine, cycle(engine.capabilities()))
    names = [run.submit(request) for request in requests]
    while not run.outputs[names[0]]:
        run.step()
    for name in (names[0], names[-1]):
        engine.cancel(name)
    tokens = run.to_end()
    engine.cancel(names[1])
    run.step()
    run.recorder.finish()
    expect_none(run.recorder.violations)
    for name, got, whole in zip(names, tokens, undisturbed, strict=True):
        expect(got == whole[: len(got)], f"request {name!r} has other tokens because requests were cancelled")
        if name not in (names[0], names[-1]):
            expect(got == whole, f"request {name!r} was not cancelled but stopped early")
    for name in (names[0], names[-1]):
        reason = run.outputs[name][-1].finish_reason
        cut = len(run.tokens(name)) < len(undisturbed[names.index(name)])
        expect(reason == "cancelled" or not cut, f"cancelled request {name!r} ended with finish_reason={reason!r}")


class _Course:
    """A policy that follows a course."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.turn = 0
        self.learnt = 0
        self.gammas: tuple[int, ...] = (0,)

    def bind(self, caps: Capabilities) -> Needs:
        self.gammas = caps.gammas
        return Needs.everywhere(caps, caps.gammas)

    def decide(self, view: StepView) -> Decision:
        self.turn += 1
        return Decision(floor_gamma(self.gammas, self.course(self.turn)))

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.learnt += 1

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> _Course:
        return _Course(self.course)


def _swaps_policies(bench: Bench) -> None:
    engine = bench.engine()
    caps = engine.capabilities()
    requests = bench.requests(engine)
    plain = Run(engine, PLAIN).all_to_end(requests)
    policies = [_Course(cycle(caps)), _Course(PLAIN), _Course(DEEPEST)]
    controller = AdaptiveController(engine, policies[0])
    tokens: dict[RequestId, tuple[int, ...]] = {
        controller.submit(request.prompt, request.sampling): () for request in requests
    }
    unfinished = set(tokens)
    for turn in range(running.MAX_STEPS):
        controller.policy = policies[turn % 3]
        for output in controller.step():
            tokens[output.request_id] += output.tokens
            unfinished -= {output.request_id} if output.finished else set()
        if not unfinished:
            break
    expect(list(tokens.values()) == plain, "tokens change when the policy is swapped while decoding")
    for _ in range(caps.lag + caps.delay + 2):
        controller.step()
    decided, learnt = sum(policy.turn for policy in policies), sum(policy.learnt for policy in policies)
    expect(learnt >= decided - caps.delay, f"{decided} decisions but only {learnt} reports after swapping policies")
    stats = controller.stats()
    expect(not stats.policy_errors and not stats.clamped, f"swapping policies met an error: {stats.last_error}")
