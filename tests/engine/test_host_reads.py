"""What runs in a step, in which order, and how often the host waits for the device."""

from __future__ import annotations

import pytest

from adaptive.requests import Request, Sampling
from tests.engine.capture_law import HostReads
from tests.engine.spy import Spy
from tests.engine.steering import Steering
from tests.engine.tiny import TINY, Cycling, DraftModel, random_weights, tiny_engine

BROAD, DEEP = (-1, -1, 0, 0, 1), (-1, 0, -1, 1, 0, 2, 3, 3)
DRAFTERS = ["ngram", "model"]


def test_one_host_read_per_step_and_one_more_for_stale_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    engine = tiny_engine()
    engine.attach(Cycling((0, 2, 2, 0, 3, 3)))
    per_step: list[tuple[int, str]] = []

    def step() -> None:
        per_step.append(spy.step(engine))

    engine.submit(Request([1, 2, 1], Sampling(max_tokens=60)))
    for _ in range(6):
        step()
    engine.submit(Request([3], Sampling(max_tokens=60)))  # joins at γ = 0, so that its arrival is not seen
    for _ in range(2):
        step()
    engine.submit(Request([4], Sampling(max_tokens=60)))  # joins at γ = 2
    step()
    plain, fresh, stale = (1, "verify accept"), (1, "verify accept draft"), (2, "draft verify accept draft")
    prefilled = (plain[0], "run verify accept")
    assert per_step == [prefilled, stale, fresh, plain, stale, fresh, plain, stale, stale]


@pytest.mark.parametrize("draft", DRAFTERS)
def test_signals_and_budgets_cost_no_further_read_and_each_look_on_the_way_one(
    draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(draft_model=DraftModel(TINY, random_weights(TINY)) if draft == "model" else None)
    controller = Steering((3,), seed=4)
    engine.attach(controller)
    engine.submit(Request([1, 2, 1], Sampling(max_tokens=90)))
    engine.step()
    reads = HostReads(monkeypatch.setattr)
    watched = 0
    for _ in range(12):
        reads.count = 0
        engine.step()
        looks = 0
        if controller.decisions[-1].draft_stop is not None:
            looks = min(int(controller.reports[-1].drafted.max()), 2)
            watched += 1
        assert reads.count == 1 + looks
    assert (watched > 2) == (draft == "model")


def test_a_draft_model_drafts_before_verification_and_costs_no_host_read(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    engine = tiny_engine(draft_model=DraftModel(TINY, random_weights(TINY)), prefill_chunk=16)
    engine.attach(Cycling((2, 2, 0, 0, 1, 3)))
    engine.submit(Request([1, 2, 1, 4, 5, 6], Sampling(max_tokens=60)))
    per_step = spy.steps(engine, 6)
    judged = "verify accept"
    assert per_step == [
        f"run catch_up draft draft {judged}",
        f"draft draft {judged}",
        judged,
        judged,
        f"catch_up draft {judged}",
        f"draft draft draft {judged}",
    ]


@pytest.mark.parametrize("draft", DRAFTERS)
def test_trees_cost_no_host_read(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An n-gram tree is filled in one piece from what was drafted ahead, a model's level by level."""
    spy = Spy(monkeypatch)
    model = DraftModel(TINY, random_weights(TINY)) if draft == "model" else None
    engine = tiny_engine(draft_model=model, prefill_chunk=16, max_tree_nodes=8)
    engine.attach(Cycling((2, DEEP, BROAD)))
    engine.submit(Request([1, 2, 1, 4, 1, 2], Sampling(max_tokens=60)))
    engine.step()
    per_step = spy.steps(engine, 2)
    if draft == "ngram":
        assert per_step == ["grow verify accept draft"] * 2
    else:
        assert per_step == ["grow grow grow grow verify accept", "grow grow verify accept"]
