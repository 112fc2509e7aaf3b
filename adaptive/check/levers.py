"""What an engine has to keep of a decision besides γ, where it declares that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from adaptive.check.recorder import Lever
from adaptive.check.running import DEEPEST, PLAIN, Bench, Run
from adaptive.check.suite import expect, expect_none
from adaptive.contract import (
    DRAFT_SIGNALS,
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    DraftStop,
    IntArray,
    Signal,
    StepReport,
    StepView,
)

BEYOND = 1e9
"""Above every signal's values."""


def _pulled(bench: Bench, lever: Lever) -> Run:
    """A run at the deepest γ, which keeps the protocol and gives the tokens of plain decode."""
    plain = Run(bench.engine(), PLAIN)
    expected = plain.all_to_end(bench.requests(plain.engine))
    run = Run(bench.engine(), DEEPEST, lever)
    tokens = run.all_to_end(bench.requests(run.engine))
    expect_none(run.recorder.violations)
    differing = [place for place, pair in enumerate(zip(expected, tokens, strict=True)) if pair[0] != pair[1]]
    expect(not differing, f"greedy tokens of requests {differing} are not those of plain decode")
    return run


def _steps(run: Run) -> Iterator[tuple[Decision, StepReport]]:
    """Decisions with the reports of the steps they acted on, where the batch was still the one decided for."""
    for report in run.recorder.reports:
        decision, rows = run.recorder.decisions.get(report.step, (Decision(0), report.rows))
        if np.array_equal(rows, report.rows):
            yield decision, report


def _drafted(run: Run) -> int:
    return sum(int(report.drafted.sum()) for report in run.recorder.reports)


def _keeps_budgets(bench: Bench) -> None:
    caps = bench.engine().capabilities()
    if not caps.verify_budget:
        return

    def pull(decision: Decision, view: StepView, turn: int) -> Decision:
        batch = len(view.rows)
        return replace(decision, verify=batch + turn % (batch * decision.gamma + 1))

    for decision, report in _steps(_pulled(bench, Lever({"budget": True}, pull))):
        if not isinstance(decision.verify, int) or len(report.rows) > decision.verify:
            continue
        spare, taken, there = decision.verify - len(report.rows), report.verified.sum(), report.drafted.sum()
        expect(taken <= spare, f"step {report.step} verified {taken} draft tokens where the budget left {spare}")
        expect(taken == min(spare, there), f"step {report.step} verified {taken} of {there} where {spare} could be")


def _keeps_row_lengths(bench: Bench) -> None:
    caps = bench.engine().capabilities()
    if not caps.ragged:
        return

    def pull(decision: Decision, view: StepView, turn: int) -> Decision:
        return replace(decision, verify=(view.rows + turn) % (decision.gamma + 1))

    for decision, report in _steps(_pulled(bench, Lever({"budget": True}, pull))):
        lens = decision.verify
        if isinstance(lens, np.ndarray) and lens.shape == report.verified.shape:
            kept = bool((report.verified <= lens).all())
            expect(kept, f"step {report.step} verified {report.verified} draft tokens where {lens} were allowed")


def _signals(caps: Capabilities) -> frozenset[Signal]:
    """Those that every drafter has, since the engine may choose any."""
    offered = [drafter.signals for drafter in caps.drafters.values()]
    return offered[0].intersection(*offered) if offered else frozenset()


def _reports_signals(bench: Bench) -> None:
    signals = _signals(bench.engine().capabilities())
    if not signals:
        return
    run = _pulled(bench, Lever({"signals": signals}))
    for report in run.recorder.reports:
        missing = signals - {"match_len"} - set(report.signals or {})
        expect(not (missing and report.drafted.any()), f"step {report.step} does not report {sorted(missing)}")


def _stopping(stop: DraftStop) -> Lever:
    def pull(decision: Decision, view: StepView, turn: int) -> Decision:
        return replace(decision, draft_stop=stop)

    return Lever({"signals": frozenset({stop.signal})}, pull)


def _stops_at_thresholds(bench: Bench) -> None:
    caps = bench.engine().capabilities()
    signals = [name for name in DRAFT_SIGNALS if name in _signals(caps)]
    if not signals:
        return
    usual = _drafted(_pulled(bench, Lever({"signals": frozenset(signals)})))
    for name in signals:
        always, never = (-BEYOND, BEYOND) if name == "entropy" else (BEYOND, -BEYOND)
        for threshold in (always, never):
            run = _pulled(bench, _stopping(DraftStop(name, threshold)))
            deepest = max((int(report.drafted.max()) for report in run.recorder.reports), default=0)
            if threshold == always:
                expect(deepest <= 1, f"{deepest} tokens were drafted although the first one's {name} passed")
            else:
                count = _drafted(run)
                expect(count == usual, f"{count} tokens were drafted, not {usual}, though no {name} passed")


def _asks_between_draft_steps(bench: Bench) -> None:
    caps = bench.engine().capabilities()
    if not caps.stepwise or caps.gammas[-1] < 2:
        return
    for depth in (1, 2):

        def extend(progress: DraftProgress, depth: int = depth) -> BoolArray:
            return np.full(len(progress.rows), progress.position + 1 < depth)

        run = _pulled(bench, Lever({"stepwise": True}, extend=extend))
        expect(run.recorder.asked > 0, "extend was never called although Needs.stepwise was set")
        deepest = max(int(report.drafted.max()) for report in run.recorder.reports)
        expect(deepest <= depth, f"{deepest} tokens were drafted where extend allowed {depth}")


def _asks_after_drafting(bench: Bench) -> None:
    caps = bench.engine().capabilities()
    if not (caps.stepwise and caps.ragged):
        return

    def trim(progress: DraftProgress) -> IntArray:
        return np.ones(len(progress.rows), dtype=np.int64)

    run = _pulled(bench, Lever({"trim": True}, trim=trim))
    expect(run.recorder.asked > 0, "trim was never called although Needs.trim was set")
    for report in run.recorder.reports:
        cut = np.array_equal(report.verified, np.minimum(report.drafted, 1))
        expect(cut, f"step {report.step} verified {report.verified} draft tokens where trim allowed one per row")


LEVER_CHECKS: Sequence[Callable[[Bench], None]] = (
    _keeps_budgets,
    _keeps_row_lengths,
    _reports_signals,
    _stops_at_thresholds,
    _asks_between_draft_steps,
    _asks_after_drafting,
)
