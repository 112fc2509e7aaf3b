"""Copying from the outputs of ended requests: what is found there, and that nothing is unless it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.requests import Request, Sampling
from engine.batch import RowState
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import NgramDrafter
from engine.drafters.output_pool import BEFORE, OutputPool
from engine.graphs.base import store
from tests.engine.plain_lookup import Found, look_up_in
from tests.engine.tiny import TINY, Cycling, random_weights, reference_greedy, run_all, tiny_engine, tokens_of

GAMMA, LONGEST, CAPACITY = 4, 5, 40
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=6)
SAME = [3, 8, 1]


class Shelf:
    """A pool filled by hand from a one-row state."""

    def __init__(self, ring: int) -> None:
        config = EngineConfig(max_batch=1, context_len=CAPACITY, max_gamma=GAMMA, prefill_chunk=8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("engine.drafters.output_pool.pool_tokens", lambda config: ring)
            self.pool = OutputPool(config, 1, LONGEST, cells=1 << 13)
        self.state = RowState(1, CAPACITY, GAMMA, "cpu")
        self.place = 0

    def add(self, text: Sequence[int], chunk: int = 8) -> None:
        self.state.history_RP[0, : len(text)] = torch.tensor(text)
        for start in range(0, len(text), chunk):
            count = min(chunk, len(text) - start)
            self.pool.aim(store, 0, start, count, self.place)
            self.pool.take(self.state, chunk + 1)
            self.place += count
        self.place += 1

    def find(self, newest: Sequence[int]) -> Found:
        padded = [*reversed(newest[-LONGEST:]), *[BEFORE] * LONGEST][:LONGEST]
        drafts_BM, count_B1, run_B1 = self.pool.propose(torch.tensor([padded]))
        return int(run_B1), drafts_BM[0, : int(count_B1)].tolist() if run_B1 > 0 else []


@given(kept=texts, newest=st.lists(st.integers(0, 2), min_size=1, max_size=8), chunk=st.integers(1, 8))
def test_finds_what_a_plain_search_of_the_ended_texts_finds(
    kept: list[list[int]], newest: list[int], chunk: int
) -> None:
    shelf = Shelf(256)
    for text in kept:
        shelf.add(text, chunk)
    assert shelf.find(newest) == look_up_in(kept, newest, LONGEST, GAMMA)


@given(kept=texts, newest=st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_a_full_ring_forgets_the_oldest_and_joins_nothing(kept: list[list[int]], newest: list[int]) -> None:
    """Whatever is found stands so in one of the texts, and what the ring still holds for sure is found."""
    shelf = Shelf(64)
    for text in kept:
        shelf.add(text)
    run, draft = shelf.find(newest)
    if run:
        passage = [*newest[-run:], *draft]
        assert draft
        assert any(passage == text[at : at + len(passage)] for text in kept for at in range(len(text)))
    assert run >= look_up_in(kept[-2:], newest, LONGEST, GAMMA)[0]


# --- in an engine ----------------------------------------------------------------------------------------------------


def asked_twice(engine: LLMEngine, count: int = 30) -> list[list[tuple[int, int, int]]]:
    """(γ, verified, accepted) per step, of two equal requests one after the other."""
    courses = []
    for _ in range(2):
        controller = Cycling((5,))
        engine.attach(controller)
        answer = run_all(engine, [Request(SAME, Sampling(max_tokens=count))])
        assert [tokens_of(outputs) for outputs in answer.values()] == [
            reference_greedy(TINY, random_weights(TINY), SAME, count)
        ]
        courses.append([(one.gamma, int(one.verified[0]), int(one.accepted[0])) for one in controller.reports])
    return courses


@pytest.mark.parametrize("backend", ["eager", "replay", "late"])
def test_a_second_request_drafts_what_the_first_was_told(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runner.StepRunner.prepare", lambda runner, needs: None)  # record only what is met
    first, second = asked_twice(tiny_engine(max_batch=1, span_outputs=True, backend=backend))
    assert second[:2] == [(5, 5, 5)] * 2, "from its first step on"
    assert len(first) > 2 * len(second), "though its own text, which comes first, repeats as well"


def test_unless_asked_for_nothing_of_an_ended_request_is_found() -> None:
    first, second = asked_twice(tiny_engine(max_batch=1))
    assert first == second


def test_what_was_cancelled_before_its_first_token_leaves_nothing() -> None:
    engine = tiny_engine(max_batch=1, span_outputs=True)
    engine.attach(Cycling((5,)))
    engine.submit(Request(list(range(10)) * 5, Sampling(max_tokens=5), id="gone"))
    engine.step()
    engine.cancel("gone")
    assert [output.finish_reason for output in engine.step()] == ["cancelled"]
    assert asked_twice(engine)[0] == asked_twice(tiny_engine(max_batch=1, span_outputs=True))[0]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_greedy_equals_plain_decode(batch: int) -> None:
    """Many answers, more than the ring holds, copied from one another."""
    engine, weights = tiny_engine(max_batch=batch, span_outputs=True), random_weights(TINY)
    engine.attach(Cycling((5, 5, 0, 2)))
    prompts = [[place % 11, (3 * place) % 11][: 1 + place % 2] for place in range(16)]
    requests = [Request(prompt, Sampling(max_tokens=10 + 4 * place)) for place, prompt in enumerate(prompts)]
    outputs = run_all(engine, requests, per_step=1)
    for got, prompt, request in zip(outputs.values(), prompts, requests, strict=True):
        assert tokens_of(got) == reference_greedy(TINY, weights, prompt, request.sampling.max_tokens)


def test_a_match_as_long_in_the_rows_own_text_is_preferred() -> None:
    engine = tiny_engine(max_batch=1, span_outputs=True)
    drafter, state = engine.drafter, engine.state
    assert isinstance(drafter, NgramDrafter)
    assert drafter.pool is not None
    state.history_RP[0, :7] = torch.tensor([1, 2, 3, 9, 1, 2, 5])
    drafter.pool.aim(store, 0, 0, 7, 0)
    drafter.pool.take(state, 9)
    for text, match, draft in [
        ([4, 1, 2, 7, 4, 1, 2], 3, [7, 4, 1, 2, 7]),
        ([1, 2, 7, 4, 1, 2], 2, [7, 4, 1, 2, 7]),
        ([0, 1, 2], 2, [5]),
        ([9, 1, 2], 3, [5]),
    ]:
        drafter.admit(store, 0)
        state.history_RP[0, : len(text)] = torch.tensor(text)
        state.lens_R[0] = len(text)
        drafter.propose(state, 1)
        assert int(state.match_lens_R[0]) == match, text
        assert state.drafts_RM[0, : int(state.draft_lens_R[0])].tolist() == draft, text
