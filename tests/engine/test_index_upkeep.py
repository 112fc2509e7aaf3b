"""The index over whole runs: whatever joined, left, paused or was chunked, it finds what a plain search finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from torch import Tensor

from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from engine.drafters import NgramDrafter
from engine.graphs import EagerBackend, Piece
from tests.engine.plain_lookup import look_up
from tests.engine.tiny import TINY, Cycling, random_weights, reference_greedy, run_all, tiny_engine, tokens_of

PROMPTS = [[1, 2, 3, 1, 2], [4], [9, 9, 9, 9] * 12, [0, 5, 6, 0, 5, 6, 0], [3, 7, 1, 7, 3] * 8, [2] * 20, [8, 1, 8]]
GAMMAS = [(5,), (3, 0), (0,) * 13 + (2,), (1, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 4)]
SPARSE = [Request(prompt, Sampling(max_tokens=8 + 5 * place)) for place, prompt in enumerate(PROMPTS)]


def serve_checked(engine: LLMEngine, requests: Sequence[Request]) -> int:
    """Serve them, one joining per step; returns how many proposals were compared with a plain search."""
    waiting, compared = list(requests), 0
    while waiting or not engine.scheduler.idle:
        if waiting:
            engine.submit(waiting.pop(0))
        engine.step()
        compared += compare(engine) if engine.runner.drafts_fresh else 0
    return compared


def compare(engine: LLMEngine) -> int:
    engine.runner.backend.synchronize()
    state, checked = engine.state, 0
    for row, sequence in engine.scheduler.running.items():
        if sequence.decoding and sequence.request.speculation:
            history = [*sequence.prompt, *sequence.tokens]
            assert state.history_RP[row, : int(state.lens_R[row])].tolist() == history
            draft = state.drafts_RM[row, : int(state.draft_lens_R[row])].tolist()
            found = int(state.match_lens_R[row]), draft
            assert found == look_up(history, 1, 8, state.max_gamma), f"row {row}: {history}"
            checked += 1
    return checked


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables in which nothing is overwritten."""
    monkeypatch.setattr("engine.drafters.ngram_index.cells_for", lambda capacity: 1 << 14)


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("gammas", GAMMAS, ids=["always", "every other", "rarely", "mixed"])
@pytest.mark.parametrize("backend", ["eager", "late"])
def test_proposals_equal_a_plain_search(backend: str, gammas: Sequence[int]) -> None:
    """Two rows for seven requests, so that rows are taken over; prompts of many chunks; gaps at γ = 0."""
    engine = tiny_engine(max_batch=2, backend=backend)
    engine.attach(Cycling(gammas))
    assert serve_checked(engine, SPARSE) > 8


@pytest.mark.usefixtures("roomy")
def test_a_request_that_does_not_speculate_costs_its_neighbours_nothing() -> None:
    engine = tiny_engine(max_batch=3)
    engine.attach(Cycling((2, 0, 0, 0, 0, 0, 0, 0, 0)))
    silent = [Request(prompt, Sampling(max_tokens=30), speculation=False) for prompt in PROMPTS[2:4]]
    assert serve_checked(engine, [*silent, *SPARSE]) > 10


@pytest.mark.usefixtures("roomy")
def test_without_upkeep_matches_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail."""
    monkeypatch.setattr("engine.index_upkeep.IndexUpkeep.run", lambda upkeep, batch: None)
    engine = tiny_engine(max_batch=2)
    engine.attach(Cycling(GAMMAS[2]))
    with pytest.raises(AssertionError, match="row"):
        serve_checked(engine, SPARSE)


@pytest.mark.usefixtures("roomy")
def test_without_clearing_a_row_matches_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of the row's last occupant are later ones, and would stand in the way."""
    monkeypatch.setattr(NgramDrafter, "admit", lambda drafter, write, row: None)
    engine = tiny_engine(max_batch=1)
    engine.attach(Cycling((5,)))
    with pytest.raises(AssertionError, match="row"):
        serve_checked(engine, [SPARSE[2], *SPARSE])


def check_greedy(engine: LLMEngine) -> None:
    weights = random_weights(TINY)
    engine.attach(Cycling((5, 0, 0, 0, 0, 0, 0, 0, 3)))
    outputs = run_all(engine, SPARSE, per_step=1)
    for got, prompt, request in zip(outputs.values(), PROMPTS, SPARSE, strict=True):
        assert tokens_of(got) == reference_greedy(TINY, weights, prompt, request.sampling.max_tokens)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("backend", ["eager", "replay", "late"])
def test_greedy_equals_plain_decode(backend: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "replay":  # recorded when met: all that greedy requests could ever meet takes long to record
        monkeypatch.setattr("engine.runner.StepRunner.prepare", lambda runner, needs: None)
    check_greedy(tiny_engine(max_batch=batch, backend=backend))


def test_greedy_equals_plain_decode_however_much_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.drafters.ngram_index.cells_for", lambda capacity: 2)
    check_greedy(tiny_engine(max_batch=3))


# --- how much is indexed when ----------------------------------------------------------------------------------------


@dataclass
class Chunks(EagerBackend):
    """Counts the chunks that are taken in."""

    count: int = 0

    def __post_init__(self) -> None:
        super().__init__("cpu")

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        if piece.__code__.co_names[0] != "take_in":
            return piece

        def counted() -> None:
            self.count += 1
            piece()

        return counted


def test_chunks_run_only_where_a_draft_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Chunks()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: chunks)
    engine = tiny_engine(max_batch=1, max_gamma=2, prefill_chunk=16)
    engine.attach(Cycling((0, 1, 1, 0, 1, 1, *[0] * 20, 1, 1)))
    engine.submit(Request([1, 2] * 20, Sampling(max_tokens=50)))  # 40 tokens: two prefill chunks before it is done
    counts = []
    while not engine.scheduler.idle:
        chunks.count = 0
        before = len(engine.scheduler.decoding())
        engine.step()
        counts += [chunks.count] if before else []
    # The prompt's 39 tokens before the newest and those of the steps before, in chunks of 16, 16 and 2s.
    assert counts[0] >= 3, "the first draft takes in the prompt"
    assert not any(counts[1:4]), "a draft takes in what the steps before it emitted"
    assert any(counts[4:]), "a long gap is caught up"
    assert sum(count > 0 for count in counts) == 2
