"""Trained drafters draft what full recomputation drafts, through every course of γ, and never change an answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.check import check_engine
from adaptive.contract import Policy
from adaptive.requests import Request, Sampling
from engine.batch import RowState
from engine.core import LLMEngine
from engine.drafters import DraftKey, HeadDrafter, MedusaDrafter
from engine.drafters.stepwise import DraftsBefore
from policies import EmaTiers, Fixed
from tests.engine.greedy import Arrival, check_course, check_greedy
from tests.engine.heads import SLICE, HeadSpec, TrainedHeads
from tests.engine.heads_reference import draft_logits
from tests.engine.tiny import UNTIED, Cycling, random_weights, reference_greedy, run_all, tiny_engine, tokens_of

SPECS = {
    "eagle3": HeadSpec("eagle3", ids=SLICE),
    "eagle3 of its own": HeadSpec("eagle3", own_head=True, own_embedding=True, biases=True, aux_ids=(0, 2, 2, 1)),
    "eagle1": HeadSpec("eagle1"),
    "eagle1 of its own": HeadSpec("eagle1", UNTIED, ids=SLICE, own_head=True, own_embedding=True, biases=True),
    "medusa": HeadSpec("medusa", count=5, ids=SLICE),
    "medusa of its own": HeadSpec("medusa", UNTIED, count=4, depth=2, own_head=True),
    "mtp": HeadSpec("mtp", UNTIED, ids=SLICE),
    "mtp of three": HeadSpec("mtp", count=3, own_head=True, own_embedding=True, biases=True),
    "a small model": HeadSpec("draft", UNTIED, ids=SLICE, count=2),
}
ONE_EACH = ("eagle3", "eagle1", "medusa", "mtp", "mtp of three")
EVERY = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
EACH_KIND = pytest.mark.parametrize("spec", [SPECS[name] for name in ONE_EACH], ids=ONE_EACH)
BATCHES = pytest.mark.parametrize("batch", [1, 3, 8])


def engine_of(spec: HeadSpec, dtype: torch.dtype = torch.float64, **options: object) -> LLMEngine:
    weights = random_weights(spec.model, dtype=dtype)
    return tiny_engine(spec.model, weights=weights, draft_model=TrainedHeads(spec), **options)  # type: ignore[arg-type]


# --- logits ----------------------------------------------------------------------------------------------------------


@dataclass
class Witness:
    """Keeps each draft's logits with the text they follow, and makes some draft tokens right, so that they stand."""

    answers: dict[tuple[int, ...], list[int]]
    right: float
    seen: list[tuple[list[int], list[int], Tensor]] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lawful = DraftsBefore.draw

        def draw(drafter: DraftsBefore, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> None:
            lawful(drafter, state, key, position, logits_BD)
            for row, drafts in enumerate(drafter.drafting(state, key.batch).tolist()):
                if drafts and state.draft_lens_R[row] > position:
                    text = state.history_RP[row, : state.lens_R[row]].tolist()
                    before = state.drafts_RM[row, :position].tolist()
                    self.seen.append((text, before, logits_BD[row].clone()))
                    self._correct(state, row, position, text)

        monkeypatch.setattr(DraftsBefore, "draw", draw)

    def _correct(self, state: RowState, row: int, position: int, text: list[int]) -> None:
        for prompt, answer in self.answers.items():
            place = len(text) - len(prompt) + position
            if tuple(text[: len(prompt)]) == prompt and place < len(answer) and self.chance.random() < self.right:
                state.drafts_RM[row, position] = answer[place]


def answers_of(spec: HeadSpec, prompts: Sequence[Sequence[int]], length: int) -> dict[tuple[int, ...], list[int]]:
    weights = random_weights(spec.model)
    return {tuple(prompt): reference_greedy(spec.model, weights, prompt, length) for prompt in prompts}


def largest_error(spec: HeadSpec, seen: Sequence[tuple[list[int], list[int], Tensor]], dtype: torch.dtype) -> float:
    weights = random_weights(spec.model, dtype=dtype)
    return max(
        float((draft_logits(spec, weights, text, drafts) - logits_D).abs().max()) for text, drafts, logits_D in seen
    )


@pytest.mark.parametrize("gammas", [(4,), (0, 3, 0, 0, 0, 4, 1), (0, 0, 0, 0, 0, 0, 0, 2)], ids=str)
@EVERY
def test_logits_equal_full_recomputation(
    spec: HeadSpec, gammas: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was accepted before: guesses, and keys and values that came from them, must not outlive their step."""
    prompts = [[1, 2, 3, 1, 2], [4, 4, 4], [6] * 20]
    answers = answers_of(spec, prompts, 16)
    witness = Witness(answers, right=0.6)
    witness.watch(monkeypatch)
    engine = engine_of(spec, max_batch=2)
    controller = Cycling(gammas)
    engine.attach(controller)
    requests = [Request(prompt, Sampling(max_tokens=16), id=str(place)) for place, prompt in enumerate(prompts)]
    outputs = run_all(engine, requests, per_step=1)
    assert [tokens_of(outputs[str(place)]) for place in range(3)] == list(answers.values())
    accepted = {int(count) for report in controller.reports for count in report.accepted}
    assert len(accepted) > (2 if gammas == (4,) else 1), "drafts of all sorts of ends"
    assert max(len(drafts) for _, drafts, _ in witness.seen) == max(gammas) - 1
    assert largest_error(spec, witness.seen, torch.float64) < 1e-9


@EVERY
def test_logits_in_single_precision(spec: HeadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness({}, right=0)
    witness.watch(monkeypatch)
    spec = replace(spec, scale=0.15)  # EAGLE-1 has no norm that keeps its guesses small
    engine = engine_of(spec, torch.float32, max_batch=2)
    engine.attach(Cycling((3, 0, 4)))
    run_all(engine, [Request(prompt, Sampling(max_tokens=8)) for prompt in ([1, 2, 3], [5, 6])])
    assert len(witness.seen) > 10
    assert largest_error(spec, witness.seen, torch.float32) < 1e-4


# --- greedy ----------------------------------------------------------------------------------------------------------


@BATCHES
@EACH_KIND
@pytest.mark.parametrize("policy", [Fixed(1), Fixed(4), EmaTiers()], ids=["1", "4", "ema"])
def test_greedy_equals_plain_decode(spec: HeadSpec, policy: Policy, batch: int) -> None:
    engine = engine_of(spec, max_batch=batch)
    controller = AdaptiveController(engine, policy=policy.clone())
    check_greedy(engine)
    assert not controller.stats().policy_errors


@BATCHES
@EVERY
def test_greedy_equals_plain_decode_while_drafting_comes_and_goes(spec: HeadSpec, batch: int) -> None:
    engine = engine_of(spec, max_batch=batch)
    engine.attach(Cycling((0, 3, 0, 0, 0, 4, 1)))
    check_greedy(engine)


@settings(max_examples=25, deadline=None)
@given(
    spec=st.sampled_from([SPECS[name] for name in ONE_EACH]),
    gammas=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    arrivals=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=8),
)
def test_greedy_survives_any_course_of_gamma_arrivals_and_cancels(
    spec: HeadSpec, gammas: list[int], arrivals: list[Arrival]
) -> None:
    engine = engine_of(spec, max_batch=3)
    engine.attach(Cycling(gammas))
    check_course(engine, arrivals, check_books)


def check_books(engine: LLMEngine) -> None:
    """The host counts what a head has read as the device does."""
    for request in engine.scheduler.running.values():
        if request.room > 0 and isinstance(engine.drafter, HeadDrafter):
            assert request.cached == int(engine.state.cached_R[request.row]) < request.context_len


@EACH_KIND
def test_after_steps_without_drafts_the_next_draft_is_the_same(spec: HeadSpec) -> None:
    """0 → k: what is drafted after a gap is what an engine drafts that never paused, from the same text."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    for steps in (1, 3, 20):
        engine = engine_of(spec, max_batch=1)
        controller = Cycling((4, *[0] * steps, 4))
        engine.attach(controller)
        engine.submit(Request(prompt, Sampling(max_tokens=60)))
        tokens = list(prompt)
        while len(controller.reports) <= steps:
            tokens += tokens_of(engine.step())
        engine.step()
        fresh = engine_of(spec, max_batch=1, prefill_chunk=64)
        fresh.attach(Cycling((4,)))
        fresh.submit(Request(tokens, Sampling(max_tokens=30)))
        fresh.step()
        assert torch.equal(engine.state.drafts_RM[0, :4], fresh.state.drafts_RM[0, :4])


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [5, 12, 30])
@pytest.mark.parametrize("name", ["eagle3", "eagle1", "mtp of three"])
def test_a_row_beyond_the_drafters_context_stops_drafting_and_goes_on(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPECS[name], context_len=limit)
    prompts = [[1, 2, 3], [6] * 20]
    answers = answers_of(spec, prompts, 50)
    Witness(answers, right=1).watch(monkeypatch)
    engine = engine_of(spec, max_batch=2)
    controller = Cycling((4, 5, 0, 3))
    engine.attach(controller)
    requests = [Request(prompt, Sampling(max_tokens=50), id=str(place)) for place, prompt in enumerate(prompts)]
    outputs = run_all(engine, requests)
    assert [tokens_of(outputs[str(place)]) for place in range(2)] == list(answers.values())
    for view, report in zip(controller.views, controller.reports, strict=True):
        assert (view.context_lens + report.verified - 1)[report.verified > 0].max(initial=0) <= limit
        assert (report.accepted == report.verified).all()
    assert any(report.verified.any() for report in controller.reports)


@EACH_KIND
def test_a_single_token_has_nothing_to_draft_from(spec: HeadSpec) -> None:
    engine = engine_of(spec, max_batch=1)
    controller = Cycling((3,))
    engine.attach(controller)
    run_all(engine, [Request([4], Sampling(max_tokens=12))])
    assert [int(report.verified[0]) for report in controller.reports[:2]] == [0, 3]


@EACH_KIND
def test_rows_that_opt_out_draft_nothing(spec: HeadSpec) -> None:
    engine = engine_of(spec, max_batch=2)
    controller = Cycling((3,))
    engine.attach(controller)
    requests = [
        Request([1, 2, 3, 4], Sampling(max_tokens=12), id=str(place), speculation=place == 0) for place in (0, 1)
    ]
    outputs = run_all(engine, requests)
    assert tokens_of(outputs["0"]) == tokens_of(outputs["1"])
    assert not any(report.verified[report.rows == 1].any() for report in controller.reports)
    if isinstance(engine.drafter, HeadDrafter):
        capacity = engine.state.capacity
        assert not any(half[:, capacity : 2 * capacity].any() for half in engine.drafter.kv.keys)


def test_medusa_offers_no_more_than_it_has_heads() -> None:
    engine = engine_of(replace(SPECS["medusa"], count=3))
    assert isinstance(engine.drafter, MedusaDrafter)
    assert engine.capabilities().gammas == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_the_engine_conforms(name: str) -> None:
    assert len(check_engine(lambda: engine_of(SPECS[name]))) > 8
