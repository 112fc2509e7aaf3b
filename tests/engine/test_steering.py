"""Levers within a step: budgets, lengths, thresholds, answers between draft steps. None changes a greedy token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from adaptive.contract import BoolArray, Decision, DraftProgress, DraftStop, IntArray, Needs, StepView, ceil_bucket
from adaptive.requests import Request, Sampling
from engine.config import token_buckets
from engine.core import LLMEngine
from engine.drafters import DraftKey
from engine.step import DecodeStep, StepKey
from tests.engine.steering import Steering, expected_drafts, expected_split
from tests.engine.test_model_drafter import FAR, ITSELF, NEAR
from tests.engine.tiny import TINY, DraftModel, random_weights, reference_greedy, run_all, tiny_engine, tokens_of

# of different lengths, by which a row's request is known
PROMPTS = [[1, 2, 3, 1, 2], [4], [9, 9, 9, 9], [0, 5, 6, 0, 5, 6, 0], [10, 3], [2, 2, 7, 1, 8, 2], [6] * 20, [8, 1, 8]]
LENGTHS = [5 + 7 * place % 30 for place in range(len(PROMPTS))]
DRAFTS: dict[str, DraftModel | None] = {"ngram": None, "near": NEAR, "far": FAR}


@cache
def plain(prompt: tuple[int, ...], length: int) -> list[int]:
    return reference_greedy(TINY, random_weights(TINY), prompt, length)


def serve(engine: LLMEngine, lengths: Sequence[int] = LENGTHS) -> None:
    """Requests of different lengths join one per step and leave when done, each with its plain tokens."""
    requests = [
        Request(prompt, Sampling(max_tokens=length), id=str(place), speculation=place != 4)
        for place, (prompt, length) in enumerate(zip(PROMPTS, lengths, strict=True))
    ]
    outputs = run_all(engine, requests, per_step=1)
    for place, (prompt, length) in enumerate(zip(PROMPTS, lengths, strict=True)):
        assert tokens_of(outputs[str(place)]) == plain(tuple(prompt), length)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("backend", ["eager", "late"])
@pytest.mark.parametrize("stepwise", [False, True], ids=["", "stepwise"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_equals_plain_decode_whatever_is_pulled(draft: str, stepwise: bool, backend: str, batch: int) -> None:
    engine = tiny_engine(max_batch=batch, draft_model=DRAFTS[draft], backend=backend)
    controller = Steering((5, 0, 3, 1, 4), seed=batch, stepwise=stepwise)
    engine.attach(controller)
    serve(engine)
    check_reports(controller, engine)
    assert any(report.verified.sum() < report.drafted.sum() for report in controller.reports)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("draft", DRAFTS)
def test_replayed_it_equals_plain_decode_too(draft: str, batch: int) -> None:
    engine = tiny_engine(max_batch=batch, max_gamma=3, draft_model=DRAFTS[draft], backend="replay")
    controller = Steering((3, 0), seed=batch, stepwise=batch == 3)
    engine.attach(controller)
    serve(engine)
    check_reports(controller, engine)


def check_reports(controller: Steering, engine: LLMEngine) -> None:
    """Each step did as it was told, by the signals that it reported itself."""
    steps = zip(controller.decisions, controller.limits, controller.views, controller.reports, strict=True)
    for decision, limits, view, report in steps:
        assert view.may_speculate is not None
        for place in range(len(report.rows)):
            if engine.drafter is not None and engine.drafter.when == "before" and view.may_speculate[place]:
                reach = min(report.gamma, room(view, place))
                assert report.drafted[place] == expected_drafts(decision, limits, report, reach, place)
        if decision.confidence is None or decision.confidence.signal != "match_len" or view.match_len is not None:
            assert report.verified.tolist() == expected_split(decision, view, report)
        for name, values in (report.signals or {}).items():
            known = report.verified if name in ("target_entropy", "js") else report.drafted
            assert np.array_equal(~np.isnan(values), np.arange(report.gamma) < known[:, None])


def room(view: StepView, place: int) -> int:
    """Draft tokens that a request's own end leaves it."""
    prompt = int(view.context_lens[place] - view.emitted[place])
    ends = {len(one): length for one, length in zip(PROMPTS, LENGTHS, strict=True)}
    return ends[prompt] - int(view.emitted[place]) - 1


# --- lengths and budgets ---------------------------------------------------------------------------------------------


class Told(Steering):
    """Asks for signals, and decides the same all along."""

    def __init__(self, decision: Decision, *, stepwise: bool = False) -> None:
        super().__init__((decision.gamma,), stepwise=stepwise)
        self.decision = decision

    def plan(self, view: StepView) -> Decision:
        self.views.append(view)
        return self.decision

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        return None


def one_step(controller: Steering, prompts: Sequence[Sequence[int]], draft: DraftModel | None = ITSELF) -> LLMEngine:
    engine = tiny_engine(max_batch=4, draft_model=draft, prefill_chunk=64)
    engine.attach(controller)
    for prompt in prompts:
        engine.submit(Request(prompt, Sampling(max_tokens=30)))
    engine.step()
    return engine


THREE = [[1, 2, 3], [4, 5], [6]]


@pytest.mark.parametrize(
    ("budget", "lens"),
    [(3, [0, 0, 0]), (4, [1, 0, 0]), (7, [2, 1, 1]), (12, [3, 3, 3]), (99, [3, 3, 3]), (1, [0, 0, 0])],
)
def test_a_budget_goes_round_position_by_position(budget: int, lens: list[int]) -> None:
    controller = Told(Decision(3, verify=budget))
    one_step(controller, THREE)
    assert controller.reports[0].verified.tolist() == lens
    assert controller.reports[0].drafted.tolist() == [3, 3, 3]
    assert controller.reports[0].accepted.tolist() == lens, "a model that drafts for itself is right"


def test_lengths_per_row_are_kept_and_rows_that_need_more_come_first() -> None:
    controller = Told(Decision(3, verify=np.array([0, 3, 1])))
    one_step(controller, THREE)
    assert controller.reports[0].verified.tolist() == [0, 3, 1]
    needy = Told(Decision(3, verify=6, row_target=np.array([1.0, 1.0, 2.5])))
    one_step(needy, THREE)
    assert needy.reports[0].verified.tolist() == [0, 0, 3], "1 + 1/2 + 1/4 < 2.5"
    content = Told(Decision(3, verify=6, row_target=np.array([1.0, 1.0, 1.4])))
    one_step(content, THREE)
    assert content.reports[0].verified.tolist() == [1, 1, 1], "1 + 1/2 is enough"


def test_verification_runs_at_the_smallest_width_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[StepKey] = []
    verify = DecodeStep.verify

    def noted(step: DecodeStep, key: StepKey) -> None:
        keys.append(key)
        verify(step, key)

    monkeypatch.setattr(DecodeStep, "verify", noted)
    for draft in DRAFTS.values():
        keys.clear()
        engine = tiny_engine(max_batch=8, draft_model=draft)
        controller = Steering((5, 3), seed=1, stepwise=True)
        engine.attach(controller)
        serve(engine)
        widths = token_buckets(engine.runner._step.logits_NV.shape[0])
        taken = [len(report.rows) + int(report.verified.sum()) for report in controller.reports]
        assert [key.verify_tokens for key in keys] == [ceil_bucket(widths, tokens) for tokens in taken]


# --- early stop ------------------------------------------------------------------------------------------------------

ALWAYS = {"entropy": -1.0, "top_prob": 2.0, "margin": 2.0}


@pytest.mark.parametrize("signal", ALWAYS)
def test_a_threshold_stops_after_the_token_that_passes_it(signal: str) -> None:
    for threshold, drafted in ((ALWAYS[signal], 1), (-ALWAYS[signal] * 9, 4)):
        controller = Told(Decision(4, draft_stop=DraftStop(signal, threshold)))  # type: ignore[arg-type]
        one_step(controller, THREE)
        assert controller.reports[0].drafted.tolist() == [drafted] * 3
    each = np.array([ALWAYS[signal], -ALWAYS[signal] * 9, ALWAYS[signal]])
    rows = Told(Decision(4, draft_stop=DraftStop(signal, each)))  # type: ignore[arg-type]
    one_step(rows, THREE)
    assert rows.reports[0].drafted.tolist() == [1, 4, 1]


def test_a_copying_drafter_has_nothing_to_stop_by() -> None:
    controller = Told(Decision(4, draft_stop=DraftStop("entropy", -1.0)))
    engine = one_step(controller, [[1, 2, 1, 2, 1]], draft=None)
    assert engine.capabilities().stepwise is False
    assert controller.reports[0].drafted.tolist() == [4]


@pytest.mark.parametrize(("backend", "late"), [("eager", 0), ("late", 1)])
def test_no_piece_is_launched_that_no_row_wants(backend: str, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where launches return early the host looks one piece late, and one too many runs."""
    ran: list[int] = []
    draft = DecodeStep.draft

    def noted(step: DecodeStep, key: DraftKey, position: int = 0) -> None:
        ran.append(position)
        draft(step, key, position)

    monkeypatch.setattr(DecodeStep, "draft", noted)
    engine = tiny_engine(max_batch=4, draft_model=NEAR, backend=backend, prefill_chunk=64)
    controller = Steering((5,), seed=3)
    engine.attach(controller)
    for prompt in THREE:
        engine.submit(Request(prompt, Sampling(max_tokens=60)))
    stopped_early = 0
    for _ in range(16):
        ran.clear()
        engine.step()
        decision, report = controller.decisions[-1], controller.reports[-1]
        deepest = int(report.drafted.max())
        watched = decision.draft_stop is not None
        assert ran == list(range(min(5, deepest + late) if watched else 5))
        stopped_early += watched and deepest < 4
    assert stopped_early > 1


# --- between draft steps ---------------------------------------------------------------------------------------------


class Answering(Told):
    """Row r drafts `depths[r]` tokens."""

    def __init__(self, decision: Decision, depths: Sequence[int]) -> None:
        super().__init__(decision, stepwise=True)
        self.depths = np.array(depths)
        self.asked = [[]]

    def extend(self, progress: DraftProgress) -> BoolArray:
        self.asked[-1].append(progress)
        more: BoolArray = progress.position + 1 < self.depths[progress.rows]
        return more


def test_the_policy_is_asked_after_each_draft_token_but_the_last() -> None:
    controller = Answering(Decision(4), [1, 4, 2])
    one_step(controller, THREE)
    report, asked = controller.reports[0], controller.asked[0]
    assert report.drafted.tolist() == report.verified.tolist() == [1, 4, 2]
    assert [progress.position for progress in asked] == [0, 1, 2]
    assert all(progress.rows.tolist() == [0, 1, 2] for progress in asked)
    assert report.signals is not None
    for progress in asked:
        for name, values in progress.signals.items():
            assert np.array_equal(values, report.signals[name][:, progress.position], equal_nan=True)
    assert set(asked[0].signals) == {"top_prob", "entropy", "margin"}
    shallow = Answering(Decision(4), [1, 1, 2])
    one_step(shallow, THREE)
    assert [progress.position for progress in shallow.asked[0]] == [0, 1], "nobody wants a third"


def test_what_the_policy_ends_can_be_cut_further() -> None:
    controller = Answering(Decision(4, verify=np.array([3, 1, 0])), [2, 4, 1])
    one_step(controller, THREE)
    assert controller.reports[0].drafted.tolist() == [2, 4, 1]
    assert controller.reports[0].verified.tolist() == [2, 1, 0]


class Trimming(Answering):
    """Looks at all that was drafted, and verifies what it likes."""

    def __init__(self, decision: Decision, depths: Sequence[int], verify: int | IntArray | None) -> None:
        super().__init__(decision, depths)
        self.verify = verify
        self.shown: list[DraftProgress] = []

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        self.shown.append(progress)
        return self.verify


def test_the_policy_may_trim_what_was_drafted() -> None:
    cases: list[tuple[int | IntArray | None, list[int]]] = [
        (np.array([2, 1, 0]), [2, 1, 0]),
        (5, [1, 1, 0]),
        (None, [3, 3, 1]),
    ]
    for verify, lens in cases:
        controller = Trimming(Decision(4, verify=np.array([3, 3, 3])), [4, 4, 1], verify)
        one_step(controller, THREE)
        report, (shown,) = controller.reports[0], controller.shown
        assert report.drafted.tolist() == [4, 4, 1]
        assert report.verified.tolist() == lens
        assert shown.position == 3
        assert report.signals is not None
        assert set(shown.signals) == {"top_prob", "entropy", "margin"}
        for name, values in shown.signals.items():
            assert np.array_equal(values, report.signals[name], equal_nan=True)


# --- what it would cost to draft again -------------------------------------------------------------------------------


def test_stale_tokens_are_what_drafting_would_first_have_to_catch_up() -> None:
    engine = tiny_engine(max_batch=2, draft_model=ITSELF, prefill_chunk=64)
    controller = Steering((0, 0, 2, 2, 0, 0))
    controller.plan = lambda view: (controller.views.append(view), next(controller._next))[1]  # type: ignore[method-assign, func-returns-value]
    engine.attach(controller)
    engine.submit(Request([1, 2, 3, 4, 5], Sampling(max_tokens=40)))
    engine.submit(Request([1, 2, 3, 4], Sampling(max_tokens=40), speculation=False))
    for _ in range(7):
        engine.step()
    stale = [view.stale_tokens["model"].tolist() for view in controller.views if view.stale_tokens is not None]
    assert stale == [[4, 0], [5, 0], [6, 0], [0, 0], [0, 0], [2, 0], [3, 0]]
    copying = Told(Decision(2))
    one_step(copying, THREE, draft=None)
    assert copying.views[0].stale_tokens is not None
    assert copying.views[0].stale_tokens["ngram"].tolist() == [0, 0, 0]


def test_needs_alone_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that asks for no signal, budget or say gets the keys that it got without them."""
    engine = tiny_engine(max_batch=2, draft_model=NEAR)
    controller = Steering((3, 0))
    controller.plan = lambda view: next(controller._next)  # type: ignore[method-assign]
    controller.attach = lambda caps: Needs.everywhere(caps, (3, 0))  # type: ignore[method-assign]
    engine.attach(controller)
    engine.submit(Request([1, 2, 3], Sampling(max_tokens=20)))
    for _ in range(6):
        engine.step()
    assert engine.runner._bundles
    assert not any(key.signals or key.trimmed for key in engine.runner._bundles)
    assert all(report.signals is None for report in controller.reports)
