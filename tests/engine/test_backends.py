"""`replay` and `late` stand in for CUDA graphs on a CPU: as `eager` when all is well, different when it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core import LLMEngine
from engine.graphs import EagerBackend, LateBackend, Piece, ReplayBackend, make_backend
from engine.graphs.replay import BakedDataError
from engine.prefill import Prefill
from engine.runner import StepRunner
from engine.sampling.verify import verify_greedy
from engine.step import DecodeStep, StepKey
from tests.engine.capture_law import CaptureLaw, NotCapturable
from tests.engine.course import CANCELLED, ORDER, REQUESTS, Course, take_course
from tests.engine.tiny import TINY, UNTIED, DraftModel, cycle_weights, near_weights, tiny_engine

MODELS = {
    "llama": (replace(TINY, num_layers=1), None),
    "all variants": (
        replace(TINY, num_layers=1, tie_embeddings=False, qkv_bias=True, qk_norm=True, sliding_window=7),
        None,
    ),
    "predictable": (UNTIED, cycle_weights(ORDER)),
}
GAMMAS = (3, 0, 5, 1)
SHAPES = (3, (-1, 0, -1, 1, 0, 2, 3, 3), 0, (-1, -1, 0, 0, 1, 1), 1)
NEAR = DraftModel(MODELS["llama"][0], near_weights(MODELS["llama"][0]))
PAIR = ("replay", "late")


def small_engine(backend: str, variant: str = "llama") -> LLMEngine:
    config, weights = MODELS[variant]
    return tiny_engine(config, max_batch=2, weights=weights, backend=backend)


def course(backend: str, variant: str = "llama") -> Course:
    return take_course(small_engine(backend, variant), GAMMAS)


@cache
def expected(variant: str = "llama") -> Course:
    """What honest pieces do, run at once. Call it before anything is planted."""
    return course("eager", variant)


def running(call: Callable[[], object]) -> Piece:
    def piece() -> None:
        call()

    return piece


# --- all is well -----------------------------------------------------------------------------------------------------


def test_the_course_changes_everything() -> None:
    done = expected("predictable")
    assert {gamma for gamma, *_ in done.steps} == set(GAMMAS)
    assert {len(rows) for _, rows, *_ in done.steps} == {1, 2}
    assert sum(sum(accepted) for *_, accepted in done.steps) > 8
    assert len(done.logprobs["sampled"]) == 14
    lengths = {request.id: len(done.tokens[str(request.id)]) for request in REQUESTS}
    assert 0 < lengths.pop(CANCELLED) < 60
    assert lengths == {request.id: request.sampling.max_tokens for request in REQUESTS if request.id != CANCELLED}


@pytest.mark.parametrize("variant", MODELS)
@pytest.mark.parametrize("backend", PAIR)
def test_backends_equal_eager(backend: str, variant: str) -> None:
    engine, reference = small_engine(backend, variant), small_engine("eager", variant)
    assert take_course(engine, GAMMAS) == take_course(reference, GAMMAS)
    engine.runner.backend.synchronize()
    for tensor, other in zip(kept(engine), kept(reference), strict=True):
        torch.testing.assert_close(tensor, other)


def kept(engine: LLMEngine) -> list[Tensor]:
    """What a step leaves for the next, trash aside."""
    halves = [half[:, : engine.kv.trash_slot] for half in (*engine.kv.keys, *engine.kv.values)]
    return [engine.state.history_RP[:-1], engine.state.lens_R[:-1], *halves]


@pytest.mark.parametrize("draft", [NEAR, None], ids=["model", "ngram"])
@pytest.mark.parametrize("backend", PAIR)
def test_backends_equal_eager_with_trees(backend: str, draft: DraftModel | None) -> None:
    """All rows, greedy and sampled, chains and trees in turn."""
    config = MODELS["llama"][0]
    engine, reference = (
        tiny_engine(config, max_batch=2, draft_model=draft, backend=name, max_tree_nodes=8)
        for name in (backend, "eager")
    )
    expected = take_course(reference, SHAPES)
    assert take_course(engine, SHAPES) == expected
    assert max(max(verified) for _, _, verified, _ in expected.steps) == 8


class Counting(EagerBackend):
    """Counts what would be recorded, by the function a piece calls."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.captured: list[str] = []

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        self.captured.append(piece.__code__.co_names[0])
        return piece


def test_bundles_share_their_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, counting = expected(), Counting()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: counting)
    assert course("eager") == honest
    counts = {name: counting.captured.count(name) for name in ("verify", "accept", "draft")}
    assert counts["draft"] <= 2 * 2, "at most one for each of two batch and two context buckets"
    assert counts["verify"] == counts["accept"] > 4 * counts["draft"]


# --- late: order, and races ------------------------------------------------------------------------------------------


def test_late_runs_nothing_before_the_host_waits() -> None:
    backend = LateBackend()
    buffer = torch.zeros(2)
    seen: list[list[float]] = []
    piece = backend.capture(running(lambda: seen.append(buffer.tolist())), [])
    values = [1, 2]
    piece()
    backend.write(buffer, values)
    values[0] = 9
    piece()
    backend.write(buffer[1], 5)
    assert seen == []
    assert buffer.tolist() == [0, 0]
    assert backend.read(buffer).tolist() == [1, 5]
    assert seen == [[0, 0], [1, 2]]
    piece()
    backend.synchronize()
    assert seen[2:] == [[1, 5]]


def aim_at_once(prefill: Prefill, write: object, row: int, start: int, count: int) -> None:
    prefill.chunk_3.copy_(torch.tensor((row, start, count)))


def read_without_waiting(runner: StepRunner, signals: bool = False) -> None:
    runner._out[:] = runner._step.state.out_RO.numpy()


RACES: dict[str, tuple[type, str, Callable[..., None]]] = {
    "a write that overtakes a launch": (Prefill, "aim", aim_at_once),
    "a read that does not wait": (StepRunner, "_read", read_without_waiting),
}


@pytest.mark.parametrize("place", RACES.values(), ids=RACES)
def test_a_planted_race_shows_when_late(
    place: tuple[type, str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = expected()
    owner, name, planted = place
    monkeypatch.setattr(owner, name, planted)
    assert course("eager") == honest, "running at once hides it"
    assert course("late").tokens != honest.tokens


# --- replay: baked data ----------------------------------------------------------------------------------------------

BUFFER = torch.arange(4.0)
BAKED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.add_(x.sum().item()),
    "a branch": lambda x: x.add_(1 if x.sum() > 0 else 2),
    "equal": lambda x: x.add_(torch.equal(x, x + 1)),
    "a new tensor": lambda x: x.add_(torch.tensor(3.0)),
    "a tensor from a list": lambda x: x.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "a host index": lambda x: x.add_(x[[0, 2, 1, 3]]),
    "a host array": lambda x: x.add_(torch.from_numpy(np.ones(4, dtype=np.float32))),
}


@pytest.fixture(scope="module")
def law() -> CaptureLaw:
    return CaptureLaw()


@pytest.mark.parametrize("offender", BAKED.values(), ids=BAKED)
def test_baked_data_is_refused(offender: Callable[[Tensor], object], law: CaptureLaw) -> None:
    """By the recording itself, as by the law of capture."""
    before = BUFFER.clone()
    with pytest.raises(BakedDataError):
        ReplayBackend().capture(running(lambda: offender(BUFFER)), [BUFFER])
    assert torch.equal(BUFFER, before)
    with pytest.raises(NotCapturable), law:
        offender(BUFFER)


def test_replay_works_on_the_buffers_as_they_are() -> None:
    backend, total, step = ReplayBackend(), torch.zeros(3), torch.ones(3)
    piece = backend.capture(running(lambda: total[1:].add_(step[1:] * 2)), [total])
    assert total.tolist() == [0, 0, 0], "what the trial run changed is put back"
    piece()
    backend.write(step, [1, 2, 3])
    piece()
    assert backend.read(total).tolist() == [0, 6, 8]


def test_a_number_from_the_host_stays_as_it_was_when_recorded() -> None:
    host, total = [1], torch.zeros(1)
    piece = ReplayBackend().capture(running(lambda: total.add_(host[0])), [total])
    host[0] = 5
    piece()
    assert total.item() == 1


def peeking(read: Callable[[Tensor], int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`verify_greedy` with a number taken from the device: it changes nothing as long as it is taken each time."""

    def verify(target_N: Tensor, grid_BW: Tensor, drafts_BG: Tensor, verified_B: Tensor) -> tuple[Tensor, Tensor]:
        return verify_greedy(target_N, grid_BW, drafts_BG, verified_B.clamp(max=read(verified_B)))

    return verify


def test_a_planted_sync_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = expected()
    monkeypatch.setattr("engine.step.verify_greedy", peeking(lambda verified_B: int(verified_B.max())))
    assert course("eager") == honest
    with pytest.raises(BakedDataError, match="_local_scalar_dense hands a value to the host"):
        course("replay")


def test_a_planted_baked_number_shows_when_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in a way that no recording notices."""
    honest = expected("predictable")
    monkeypatch.setattr("engine.step.verify_greedy", peeking(lambda verified_B: max(verified_B.tolist())))
    assert course("eager", "predictable") == honest
    assert course("replay", "predictable").steps != honest.steps


# --- poisoned outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", PAIR)
def test_a_planted_stale_read_shows(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification that also reads what another bundle left: harmless by luck, as long as that is a number."""
    honest, verify = expected(), DecodeStep.verify

    def stale(step: DecodeStep, key: StepKey) -> None:
        before_NV = step.logits_NV[: key.verify_tokens] * 0
        verify(step, key)
        step.logits_NV[: key.verify_tokens].add_(before_NV)

    monkeypatch.setattr(DecodeStep, "verify", stale)
    assert course("eager") == honest
    assert course(backend).tokens != honest.tokens


@pytest.mark.parametrize("backend", PAIR)
def test_outputs_are_poisoned_before_a_piece(backend: str) -> None:
    made = make_backend(backend, "cpu")
    logits, tokens = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    piece = made.capture(running(lambda: (logits[:1].fill_(7), tokens[:1].fill_(7))), [], [logits, tokens])
    piece()
    made.synchronize()
    assert logits[0] == 7
    assert logits[1:].isnan().all()
    assert tokens.tolist() == [7, -1, -1]
