"""The last layer: how pieces are recorded. What a recording changes must be put back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from adaptive.contract import Needs
from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from engine.graphs import CudaGraphBackend, make_backend
from tests.engine.heads import SLICE, HeadSpec, TrainedHeads
from tests.engine.rehearsing import RehearsingBackend
from tests.engine.tiny import (
    TINY,
    UNTIED,
    Cycling,
    Drafting,
    DraftModel,
    cycle_weights,
    near_weights,
    run_all,
    tiny_engine,
    tokens_of,
)

REQUESTS = [
    Request([1, 2, 3, 1, 2] * 15, Sampling(max_tokens=15), id="long"),
    Request([4], Sampling(max_tokens=40), id="short"),
    Request([9, 9, 3], Sampling(max_tokens=20, temperature=0.9, seed=3, logprobs=2), id="sampled"),
    Request([1, 2, 1, 2] * 17, Sampling(max_tokens=20, temperature=1.1, top_k=4, seed=4), id="long sampled"),
    Request([6, 7, 6], Sampling(max_tokens=30), id="late", speculation=False),
]


DRAFTS: dict[str, Drafting | None] = {
    "ngram": None,
    "model": DraftModel(TINY, near_weights(TINY)),
    "eagle3": TrainedHeads(HeadSpec("eagle3", ids=SLICE)),
    "mtp": TrainedHeads(HeadSpec("mtp", count=2)),
    "medusa": TrainedHeads(HeadSpec("medusa", ids=SLICE, count=5)),
}
BY_ALL = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)


def answers(engine: LLMEngine, gammas: Sequence[int]) -> dict[str, list[int]]:
    engine.attach(Cycling(gammas))
    return {name: tokens_of(outputs) for name, outputs in run_all(engine, REQUESTS, per_step=1).items()}


@BY_ALL
def test_recording_while_decoding_changes_no_token(draft: Drafting | None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(tiny_engine(max_batch=4, draft_model=draft), (3, 0, 5, 1))
    backend = RehearsingBackend()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: backend)
    monkeypatch.setattr("engine.runner.StepRunner.prepare", lambda runner, needs: None)  # so that all is recorded late
    assert answers(tiny_engine(max_batch=4, draft_model=draft), (3, 0, 5, 1)) == expected
    assert backend.captures > 50


@BY_ALL
def test_preparing_for_another_policy_amid_decoding_changes_no_token(
    draft: Drafting | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(tiny_engine(max_batch=2, draft_model=draft), (3, 0))
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: RehearsingBackend())
    engine = tiny_engine(max_batch=2, draft_model=draft)
    controller = Cycling((3, 0))
    engine.attach(controller)
    tokens: dict[str, list[int]] = {}
    for request in REQUESTS:
        engine.submit(request)
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
    engine.prepare(Needs.everywhere(engine.capabilities(), (0, 3, 4)))
    while not engine.scheduler.idle:
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
    assert tokens == expected


def test_recording_a_prefill_leaves_other_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial run aimed at the chunk before it, in a narrower context, would spoil that row's cache."""
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: RehearsingBackend())
    engine = tiny_engine()
    engine.attach(Cycling((0,)))
    prompt = [(7 * place * place + 3 * place) % 11 for place in range(75)]
    engine.submit(Request(prompt, Sampling(max_tokens=15)))
    while not engine.scheduler.decoding():
        engine.step()
    before = [half[:, : len(prompt)].clone() for half in (*engine.kv.keys, *engine.kv.values)]
    engine.submit(Request([1, 2, 3], Sampling(max_tokens=15)))
    engine.step()
    for was, half in zip(before, (*engine.kv.keys, *engine.kv.values), strict=True):
        assert torch.equal(was, half[:, : len(prompt)])


def test_greedy_steps_are_all_recorded_before_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RehearsingBackend()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: backend)
    order = list(range(11))
    engine = tiny_engine(UNTIED, weights=cycle_weights(order), max_gamma=8)
    controller = Cycling((8, 0, 3))
    engine.attach(controller)
    before = backend.captures
    assert before > 0
    requests = [Request([place], Sampling(max_tokens=90 - 4 * place), id=f"{place}") for place in range(6)]
    run_all(engine, requests, per_step=1)
    widths = {int(report.verified.sum()) + len(report.rows) for report in controller.reports}
    assert 18 in widths, "a width between two buckets"
    assert backend.captures == before


def test_an_engine_without_a_drafter_has_no_draft_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RehearsingBackend()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: backend)
    engine = tiny_engine(draft=False)
    engine.attach(Cycling((0,)))
    assert len(tokens_of(run_all(engine, [Request([1], Sampling(max_tokens=5), id="one")])["one"])) == 5


def test_eager_runs_the_piece_itself() -> None:
    calls: list[int] = []
    backend = make_backend("eager", "cpu")
    piece = backend.capture(lambda: calls.append(1), [])
    backend.synchronize()
    assert not calls, "nothing runs before it is asked to"
    piece()
    piece()
    assert len(calls) == 2


def test_without_a_gpu_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs a CUDA device and torch finds none: use backend='eager'"):
        CudaGraphBackend("cuda")
    with pytest.raises(ValueError, match="torch finds no CUDA device"):
        tiny_engine(TINY, device="cuda", backend="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device and torch finds none")
@BY_ALL
def test_graphs_give_what_eager_gives_while_keys_change(draft: Drafting | None) -> None:
    gammas = (3, 0, 5, 1, 2)
    expected = answers(tiny_engine(max_batch=4, draft_model=draft, device="cuda"), gammas)
    assert answers(tiny_engine(max_batch=4, draft_model=draft, device="cuda", backend="cuda"), gammas) == expected
    assert answers(tiny_engine(max_batch=4, draft_model=draft), gammas) == expected
