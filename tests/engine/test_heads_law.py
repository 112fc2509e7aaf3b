"""Trained drafters keep the laws: sampled answers have the target's distribution, pieces can be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from adaptive.contract import Acceptance, AcceptanceKind
from adaptive.requests import Request, Sampling
from engine.batch import RowState
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import CatchUpKey, DraftKey, HeadDrafter, MedusaDrafter
from engine.drafters.stepwise import CachedDrafter
from engine.features import Features
from engine.kv import KVCache
from engine.models.decoder import Decoder
from engine.prefill import Prefill, PrefillKey
from engine.sampling.distribution import Sampler
from engine.sampling.randomness import ACCEPT
from engine.step import DecodeStep, StepKey
from tests.engine.capture_law import LawfulBackend
from tests.engine.course import REQUESTS, take_course
from tests.engine.heads import HeadSpec, TrainedHeads
from tests.engine.joint_law import SAMPLES, SMALL, joint_law, p_value, sampled_answers
from tests.engine.rehearsing import RehearsingBackend
from tests.engine.spy import Spy
from tests.engine.test_heads import EACH_KIND, ONE_EACH, SPECS, Witness, answers_of, engine_of, largest_error
from tests.engine.test_interrupt import PROMPTS, serve
from tests.engine.tiny import TINY, Cycling, random_weights, run_all, tiny_engine, tokens_of

# --- sampled ---------------------------------------------------------------------------------------------------------

SEED = 3
SLICED = HeadSpec("eagle3", SMALL, ids=(0, 2, 3), aux_ids=(0, 0, 1), scale=0.3)
WHOLE = {
    "eagle1": HeadSpec("eagle1", SMALL, own_head=True, scale=0.3),
    "medusa": HeadSpec("medusa", SMALL, ids=(1, 2, 3), count=3, scale=0.3),
    "mtp": HeadSpec("mtp", SMALL, own_head=True, count=2, scale=0.3),
}
PLAIN = Sampling(temperature=0.9)
STANDARD, BLOCK = Acceptance(AcceptanceKind.STANDARD), Acceptance(AcceptanceKind.BLOCK)


def chance(
    spec: HeadSpec,
    gammas: Sequence[int],
    sampling: Sampling = PLAIN,
    rule: Acceptance = STANDARD,
    samples: int = SAMPLES,
) -> float:
    """How likely answers as far from the exact joint law of four tokens are, were they drawn from it."""
    answers = sampled_answers(gammas, sampling, SEED, TrainedHeads(spec), rule, prompt=[1, 3], samples=samples)
    return p_value(answers, joint_law(sampling, SEED, prompt=[1, 3]))


@pytest.mark.parametrize(
    ("gammas", "rule"),
    [((3,), STANDARD), ((0, 2, 1, 3), STANDARD), ((0, 2, 1, 3), BLOCK)],
    ids=["standard", "changing", "block"],
)
def test_a_sliced_head_follows_the_exact_joint_law(gammas: tuple[int, ...], rule: Acceptance) -> None:
    """Token 1 is never drafted: it has to come from what rejections leave, as often as the target says it."""
    assert chance(SLICED, gammas, rule=rule) > 1e-3


def test_filtered_sampling_follows_the_exact_joint_law() -> None:
    assert chance(SLICED, (2, 3), Sampling(temperature=1.3, top_k=2), samples=SAMPLES // 2) > 1e-3


@pytest.mark.parametrize("spec", WHOLE.values(), ids=WHOLE)
def test_every_kind_follows_the_exact_joint_law(spec: HeadSpec) -> None:
    assert chance(spec, (3, 0, 2), samples=SAMPLES // 2) > 1e-3


def test_a_token_of_the_slice_that_passes_for_another_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """q at the slice's own numbers instead of the target's must not pass."""
    lawful = CachedDrafter._sample

    def misplaced(drafter: CachedDrafter, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> Tensor:
        token_B = lawful(drafter, state, key, position, logits_BD)
        q_BV = drafter.q_RMV[: key.batch, position]
        q_BV.copy_(q_BV.roll(1, -1))
        return token_B

    monkeypatch.setattr(CachedDrafter, "_sample", misplaced)
    assert chance(SLICED, (3,), samples=SAMPLES // 2) < 1e-6


def test_a_reused_random_number_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.drafters.stepwise.DRAFT", ACCEPT)
    assert chance(SLICED, (3,), samples=SAMPLES // 2) < 1e-6


def test_nothing_outside_the_slice_is_drafted() -> None:
    engine = engine_of(SPECS["eagle3"], max_batch=2)
    engine.attach(Cycling((4, 2)))
    run_all(engine, [Request([1, 2], Sampling(40, 1.3, seed=1)), Request([3, 4], Sampling(40, 1.3, top_k=3, seed=2))])
    assert isinstance(engine.drafter, HeadDrafter)
    assert engine.drafter.ids_D is not None
    outside = [token for token in range(TINY.vocab_size) if token not in engine.drafter.ids_D.tolist()]
    q_RMV = engine.drafter.q_RMV[:2, :4]
    assert not q_RMV[..., outside].any()
    assert torch.allclose(q_RMV.sum(-1), torch.ones_like(q_RMV[..., 0]))
    assert not set(outside) & set(engine.state.drafts_RM[:2, :4].flatten().tolist())


# --- pieces ----------------------------------------------------------------------------------------------------------

MIXED = [
    Request([1, 2, 3, 1, 2], Sampling(max_tokens=12)),
    Request([4] * 20, Sampling(max_tokens=9, temperature=0.8, logprobs=3)),
    Request([5], Sampling(max_tokens=7, temperature=1.2, top_k=4, top_p=0.9)),
    Request([7, 8, 7, 8], Sampling(max_tokens=15), speculation=False),
]


@EACH_KIND
def test_every_piece_runs_on_meta_tensors(spec: HeadSpec) -> None:
    weights = {name: tensor.to("meta") for name, tensor in random_weights(spec.model).items()}
    decoder = Decoder(spec.model, weights, 96, "meta")
    settings = EngineConfig(max_batch=4, context_len=96, max_gamma=4, dtype="float64", device="meta")
    drafter = TrainedHeads(spec).make(settings, decoder, weights)
    assert isinstance(drafter, HeadDrafter | MedusaDrafter)
    state = RowState(rows=4, capacity=96, max_gamma=4, device="meta")
    kv = KVCache.allocate(spec.model, rows=4, capacity=96, dtype=torch.float64, device="meta")
    logits = torch.zeros((20, spec.model.vocab_size), dtype=torch.float64, device="meta")
    step = DecodeStep(decoder, kv, state, drafter, logits)
    for sampler in Sampler:
        key = StepKey(4, 4, 16, 96, sampler)
        step.verify(key)
        step.accept(key)
        step.draft(replace(key.draft, width=4, tokens=11))
        for position in range(1, step.draft_pieces(4)):
            step.draft(key.draft, position)
    drafter.catch_up(state, CatchUpKey(4, 8, 20, 64))
    chunk = torch.zeros(3, dtype=torch.int64, device="meta")
    Prefill(decoder, kv, state, chunk, drafter.features).run(PrefillKey(8, 64))


@EACH_KIND
def test_a_whole_run_keeps_the_law_of_capture(spec: HeadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LawfulBackend] = []

    def make(name: str, device: str) -> LawfulBackend:
        made.append(LawfulBackend())
        return made[-1]

    monkeypatch.setattr("engine.core.make_backend", make)
    engine = engine_of(spec)
    controller = Cycling((4, 0, 0, 0, 1, 3))
    engine.attach(controller)
    run_all(engine, MIXED, per_step=1)
    assert {report.gamma for report in controller.reports} == {0, 1, 3, 4}
    assert any(report.verified.any() for report in controller.reports)
    assert {"sort", "index_copy_", "silu"} <= made[0].law.ops


@pytest.mark.parametrize("backend", ["replay", "late"])
@EACH_KIND
def test_backends_equal_eager(spec: HeadSpec, backend: str) -> None:
    spec = replace(spec, model=replace(spec.model, num_layers=1), aux_ids=(0, 0, 1))
    course = take_course(engine_of(spec, max_batch=2, backend=backend), (3, 0, 4, 1))
    assert course == take_course(engine_of(spec, max_batch=2), (3, 0, 4, 1))
    assert len(course.tokens) == len(REQUESTS)


@EACH_KIND
def test_recording_changes_no_token_and_is_over_before_serving(spec: HeadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request([place, 1, 2], Sampling(max_tokens=20), id=str(place)) for place in range(3)]

    def tokens(engine: LLMEngine) -> dict[str, list[int]]:
        engine.attach(Cycling((3, 1, 3)))
        return {name: tokens_of(outputs) for name, outputs in run_all(engine, requests).items()}

    expected = tokens(engine_of(spec, prefill_chunk=2))
    backend = RehearsingBackend()
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: backend)
    engine = engine_of(spec, prefill_chunk=2)
    engine.attach(Cycling((0, 3, 1, 3)))
    before = backend.captures
    assert before > 20
    assert tokens(engine) == expected
    late = backend.captures - before
    assert late <= 6, "prompt chunks and their catching up are recorded when first met"


@EACH_KIND
def test_no_buffer_is_replaced(spec: HeadSpec) -> None:
    engine = engine_of(spec)
    drafter = engine.drafter
    assert isinstance(drafter, HeadDrafter | MedusaDrafter)

    def places() -> list[int]:
        held = [drafter.features.cache_SE, drafter.q_RMV] if isinstance(drafter.features, Features) else []
        if isinstance(drafter, HeadDrafter):
            held += [*drafter.kv.keys, *drafter.kv.values, *drafter.sources]
        return [tensor.data_ptr() for tensor in held]

    before = places()
    assert len(before) >= 2
    for gammas in [(0,), (4,), (0, 3, 1)]:
        engine.attach(Cycling(gammas))
        run_all(engine, MIXED, per_step=1)
    assert places() == before


@EACH_KIND
def test_what_runs_in_a_step_and_one_host_read(spec: HeadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """γ = 0 costs nothing but the features; a gap that the first draft piece takes needs no catching up."""
    spy = Spy(monkeypatch)
    engine = tiny_engine(spec.model, draft_model=TrainedHeads(spec), max_gamma=4, prefill_chunk=16)
    engine.attach(Cycling((2, 2, 0, 0, 1, 3)))
    engine.submit(Request([1, 2, 1, 4, 5, 6, 7, 8, 9], Sampling(max_tokens=60)))
    per_step = spy.steps(engine, 6)
    one = spec.kind == "medusa"
    two, three = ("draft", "draft") if one else ("draft draft", "draft draft draft")
    judged = "verify accept"
    start = "run" if one else "run catch_up"
    assert per_step == [
        f"{start} {two} {judged}",
        f"{two} {judged}",
        judged,
        judged,
        f"draft {judged}",
        f"{three} {judged}",
    ]


def test_all_kinds_are_tried() -> None:
    assert {SPECS[name].kind for name in ONE_EACH} == {"eagle1", "eagle3", "medusa", "mtp"}


# --- interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mtp of three", "medusa"])
def test_a_step_cut_short_leaves_no_guess_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written when it struck: answers, and all later drafts, are those of full recomputation."""
    spec, struck, at = SPECS[name], True, 0
    answers = answers_of(spec, list(PROMPTS.values()), 15)
    while struck:
        with monkeypatch.context() as patch:
            witness = Witness(answers, right=0.6)
            witness.watch(patch)
            engine = engine_of(spec, max_batch=3)
            engine.attach(Cycling((3, 0, 4, 1)))
            outputs, struck = serve(engine, 2, at)
        assert [tokens_of(chunks) for chunks in outputs.values()] == list(answers.values()), f"cut at operation {at}"
        assert largest_error(spec, witness.seen, torch.float64) < 1e-9, f"cut at operation {at}"
        at += 239
    assert at > 400, "the step is long enough for many places to cut it"
