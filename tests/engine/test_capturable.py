"""A step could be recorded as a CUDA graph: no look at the host, no new buffer, nothing the key does not fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adaptive.contract import Acceptance, AcceptanceKind
from adaptive.requests import Request, Sampling
from engine.batch import RowState
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import CatchUpKey, Drafter, GrowKey, ModelDrafter, NgramDrafter
from engine.kv import KVCache
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.prefill import Prefill, PrefillKey
from engine.prefix_copy import PrefixCopy
from engine.sampling.distribution import Sampler
from engine.sampling.rules import RULES
from engine.signals import SIGNALS
from engine.step import DecodeStep, StepKey
from engine.tree import TreeState, static_tree
from tests.engine.capture_law import CaptureLaw, LawfulBackend, NotCapturable
from tests.engine.relaxing import LOOSE, Relaxing
from tests.engine.steering import Steering
from tests.engine.tiny import TINY, Cycling, DraftModel, random_weights, run_all, tiny_engine

CONFIGS = {"llama": TINY, "all variants": replace(TINY, tie_embeddings=False, qkv_bias=True, sliding_window=7)}
KEYS = [
    StepKey(batch, gamma, tokens, context, sampler, logprobs)
    for (batch, gamma, tokens, context), sampler, logprobs in product(
        [(1, 0, 1, 64), (4, 0, 4, 96), (1, 5, 6, 64), (4, 1, 7, 64), (4, 5, 16, 96)], Sampler, [False, True]
    )
]
KEYS += [
    StepKey(4, 5, 16, 96, sampler, acceptance=AcceptanceKind.BLOCK) for sampler in (Sampler.PLAIN, Sampler.FILTERED)
]
KEYS += [StepKey(4, 5, 16, 96, sampler, trimmed=True) for sampler in Sampler]
KEYS += [StepKey(4, 5, 16, 96, signals=frozenset({name}), trimmed=True) for name in SIGNALS]
KEYS += [StepKey(4, 3, 11, 96, sampler, signals=frozenset(SIGNALS)) for sampler in Sampler]
LOSSY_KEYS = [
    StepKey(4, 5, 16, 96, sampler, signals=rule.needs, acceptance=kind)
    for kind, rule in RULES.items()
    for sampler in Sampler
]
TREES = [(-1, -1, 0, 0, 1), (-1, 0, -1, 1, 0, 2, 3, 3), (-1,)]
KEYS += [
    StepKey(4, tree.depth, 20, 96, sampler, logprobs, tree=tree.key)
    for tree in [static_tree(parents, 5) for parents in TREES]
    for sampler, logprobs in [(Sampler.GREEDY, False), (Sampler.FILTERED, True)]
]
DRAFTERS = ["ngram", "model"]
MIXED = [
    Request([1, 2, 3, 1, 2], Sampling(max_tokens=12)),
    Request([4] * 20, Sampling(max_tokens=9, temperature=0.8, logprobs=3)),
    Request([5], Sampling(max_tokens=7, temperature=1.2, top_k=4, top_p=0.9)),
    Request([7, 8, 7, 8], Sampling(max_tokens=15, logprobs=0), speculation=False),
]


# --- on tensors without data -----------------------------------------------------------------------------------------


def meta_step(config: ModelConfig, draft: str) -> tuple[DecodeStep, Prefill]:
    weights = {name: tensor.to("meta") for name, tensor in random_weights(config).items()}
    decoder = Decoder(config, weights, 96, "meta")
    state = RowState(rows=4, capacity=96, max_gamma=5, device="meta")
    kv = KVCache.allocate(config, rows=4, capacity=96, dtype=torch.float64, device="meta")
    logits = torch.zeros((36, config.vocab_size), dtype=torch.float64, device="meta")
    chunk = torch.zeros(3, dtype=torch.int64, device="meta")
    settings = EngineConfig(max_batch=4, context_len=96, max_gamma=5, dtype="float64", device="meta")
    drafter: Drafter = NgramDrafter(settings, min_match=1, span_outputs=True)
    if draft == "model":
        small = replace(config, vocab_size=8, context_len=80)
        weights = {name: tensor.to("meta") for name, tensor in random_weights(small).items()}
        drafter = DraftModel(small, weights).drafter(settings, config.vocab_size)
        drafter.prepare({"js"})
    step = DecodeStep(decoder, kv, state, drafter, logits, trees=TreeState(4, 8, "meta"))
    return step, Prefill(decoder, kv, state, chunk)


@pytest.mark.parametrize("draft", DRAFTERS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_piece_runs_on_meta_tensors(config: ModelConfig, draft: str) -> None:
    step, prefill = meta_step(config, draft)
    assert step.drafter is not None
    for key in [*KEYS, *[key for key in LOSSY_KEYS if key.signals <= step.drafter.caps.signals]]:
        step.verify(key)
        step.accept(key)
        for position in range(step.draft_pieces(key.gamma)):
            step.draft(key.draft, position)
        if key.tree is not None:
            for level in range(step.grow_pieces(key.tree)):
                step.grow(GrowKey(key.batch, key.context, key.tree), level)
    if isinstance(step.drafter, ModelDrafter):
        for width, tokens, context in [(1, 4, 64), (8, 20, 96)]:
            step.drafter.catch_up(step.state, CatchUpKey(4, width, tokens, context))
    if isinstance(step.drafter, NgramDrafter):
        for width in (1, 16, 200):
            step.drafter.take_in(step.state, width)
            if step.drafter.pool is not None:
                step.drafter.pool.take(step.state, width + 1)
    for tokens, context in [(1, 64), (8, 64), (8, 96)]:
        prefill.run(PrefillKey(tokens, context))
    copy = PrefixCopy(step.kv, step.drafter, torch.zeros(4, dtype=torch.int64, device="meta"))
    for context in (64, 96):
        copy.run(context)


META_OFFENDERS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "a branch": lambda x: 1 if x.sum() > 0 else 2,
    "a mask read": lambda x: x[x > 0],
}


@pytest.mark.parametrize("offender", META_OFFENDERS.values(), ids=META_OFFENDERS)
def test_meta_refuses(offender: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        offender(torch.zeros(4, device="meta"))


# --- under the law of capture ----------------------------------------------------------------------------------------


def lawful_engine(
    monkeypatch: pytest.MonkeyPatch,
    config: ModelConfig = TINY,
    draft_model: DraftModel | None = None,
    span_outputs: bool = False,
) -> tuple[LLMEngine, LawfulBackend]:
    made: list[LawfulBackend] = []

    def make(name: str, device: str) -> LawfulBackend:
        made.append(LawfulBackend())
        return made[-1]

    monkeypatch.setattr("engine.core.make_backend", make)
    return tiny_engine(config, draft_model=draft_model, span_outputs=span_outputs, max_tree_nodes=8), made[0]


@pytest.mark.parametrize("span_outputs", [False, True], ids=["", "span outputs"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_whole_run_keeps_the_law(config: ModelConfig, span_outputs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, backend = lawful_engine(monkeypatch, config, span_outputs=span_outputs)
    controller = Cycling((5, 0, 1, 3))
    engine.attach(controller)
    run_all(engine, MIXED, per_step=1)
    assert {report.gamma for report in controller.reports} == {0, 1, 3, 5}
    assert {"topk", "sort", "searchsorted", "index_copy_"} <= backend.law.ops, "the law saw the sampled pieces"
    assert backend.pieces >= {"take_in", "take"} if span_outputs else backend.pieces >= {"take_in"}


@pytest.mark.parametrize("kind", [AcceptanceKind.STANDARD, AcceptanceKind.BLOCK])
def test_a_whole_run_of_a_draft_model_keeps_the_law(kind: AcceptanceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CONFIGS["all variants"], vocab_size=8, context_len=30)
    engine, backend = lawful_engine(monkeypatch, draft_model=DraftModel(small, random_weights(small)))
    controller = Cycling((5, 0, 0, 0, 1, 3), Acceptance(kind))
    engine.attach(controller)
    run_all(engine, MIXED, per_step=1)
    assert {report.gamma for report in controller.reports} == {0, 1, 3, 5}
    assert any(report.verified.any() for report in controller.reports)
    assert ("amax" in backend.law.ops) == (kind is AcceptanceKind.BLOCK), "the law saw the rule"


@pytest.mark.parametrize("stepwise", [False, True], ids=["", "stepwise"])
@pytest.mark.parametrize("draft", DRAFTERS)
def test_a_whole_run_with_every_lever_keeps_the_law(
    draft: str, stepwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(CONFIGS["all variants"], vocab_size=8, context_len=30)
    model = DraftModel(small, random_weights(small)) if draft == "model" else None
    engine, backend = lawful_engine(monkeypatch, draft_model=model)
    if isinstance(engine.drafter, ModelDrafter):
        engine.drafter.prepare({"js"})
    backend.law = CaptureLaw()  # which knows the buffer made just now
    controller = Steering((5, 0, 1, 3), stepwise=stepwise)
    engine.attach(controller)
    run_all(engine, MIXED, per_step=1)
    assert any(report.verified.sum() < report.drafted.sum() for report in controller.reports)
    assert {"sort", "sigmoid", "special_entr"} <= backend.law.ops, "the law saw the split and the signals"


@pytest.mark.parametrize("name", LOOSE)
def test_a_whole_run_by_a_lossy_rule_keeps_the_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CONFIGS["all variants"], vocab_size=8, context_len=30)
    engine, backend = lawful_engine(monkeypatch, draft_model=DraftModel(small, random_weights(small)))
    assert isinstance(engine.drafter, ModelDrafter)
    engine.drafter.prepare({"js"})
    backend.law = CaptureLaw()  # which knows the buffer made just now
    controller = Relaxing((5, 0, 1, 3), LOOSE[name])
    engine.attach(controller)
    run_all(engine, [replace(request, allow_lossy=place != 1) for place, request in enumerate(MIXED)], per_step=1)
    assert any(report.lossy_accepted is not None for report in controller.reports)
    assert "maximum" in backend.law.ops, "the law saw a rule at work"


@pytest.mark.parametrize("draft", DRAFTERS)
def test_a_whole_run_with_trees_keeps_the_law(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CONFIGS["all variants"], vocab_size=8, context_len=30)
    model = DraftModel(small, random_weights(small)) if draft == "model" else None
    engine, backend = lawful_engine(monkeypatch, CONFIGS["all variants"], model)
    controller = Cycling((*TREES, 0, 3))
    engine.attach(controller)
    run_all(engine, MIXED, per_step=1)
    assert max(int(report.verified.max()) for report in controller.reports) == 8
    assert {"scatter", "index_copy_", "argmax"} <= backend.law.ops, "the law saw links, moves and greedy paths"


def attend(x: Tensor, dropout: float = 0.0) -> Tensor:
    x_BHTD = x.view(1, 1, 4, 1)
    return F.scaled_dot_product_attention(x_BHTD, x_BHTD, x_BHTD, dropout_p=dropout)


OFFENDERS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "a branch": lambda x: 1 if x.sum() > 0 else 2,
    "equal": lambda x: torch.equal(x, x + 1),
    "is_nonzero": lambda x: torch.is_nonzero(x.sum()),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "a mask read": lambda x: x[x > 0],
    "a mask write": lambda x: x.__setitem__(x > 0, 1.0),
    "a mask write of a tensor": lambda x: x.__setitem__(x > 0, x.sum()),
    "a byte mask": lambda x: x[(x > 0).to(torch.uint8)],
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "host index": lambda x: x[[0, 2]],
    "host array index": lambda x: x[torch.from_numpy(np.array([0, 2]))],
    "a new tensor": lambda x: x + torch.tensor(3.0),
    "a tensor from a list": lambda x: torch.tensor([1.0, 2.0]),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 1),
    "rand": lambda x: torch.rand(3),
    "rand_like": lambda x: torch.rand_like(x),
    "exponential": lambda x: x.exponential_(),
    "bernoulli": lambda x: x.bernoulli(0.5),
    "randperm": lambda x: torch.randperm(4),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "attention with dropout": lambda x: attend(x, dropout=0.5),
    "to another device": lambda x: x.to("meta"),
    "copy between devices": lambda x: torch.empty(4, device="meta").copy_(x),
}


BUFFER, INDEX = torch.arange(4.0), torch.tensor([0, 2])


@pytest.fixture(scope="module")
def law() -> CaptureLaw:
    return CaptureLaw()


@pytest.mark.parametrize("offender", OFFENDERS.values(), ids=OFFENDERS)
def test_the_law_refuses(offender: Callable[[Tensor], object], law: CaptureLaw) -> None:
    with pytest.raises(NotCapturable), law:
        offender(BUFFER)


def test_the_law_allows_what_a_graph_can_record(law: CaptureLaw) -> None:
    buffer, index = BUFFER, INDEX
    with law:
        buffer.copy_(torch.where(buffer > 1, buffer * 2, 1.0) + torch.arange(4) + torch.full((4,), 3))
        attend(buffer)
        buffer.index_copy_(0, index, buffer[index] + buffer.masked_fill(buffer > 2, 0.0).sort().values[:2])


def test_an_offender_inside_an_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = lawful_engine(monkeypatch)
    lawful = NgramDrafter.propose

    def peeking(drafter: NgramDrafter, state: RowState, batch: int) -> None:
        if int(state.lens_R[0].item()) > 0:
            lawful(drafter, state, batch)

    monkeypatch.setattr(NgramDrafter, "propose", peeking)
    engine.attach(Cycling((2,)))
    with pytest.raises(NotCapturable, match="_local_scalar_dense"):
        run_all(engine, MIXED)


# --- buffers ---------------------------------------------------------------------------------------------------------


def kv_buffers(name: str, kv: KVCache) -> dict[str, Tensor]:
    return {f"{name} {place}": half for place, half in enumerate((*kv.keys, *kv.values))}


def buffers(engine: LLMEngine) -> dict[str, int]:
    """Address of everything a captured piece would have baked in."""
    named = {name: value for name, value in vars(engine.state).items() if isinstance(value, Tensor)}
    named |= kv_buffers("target", engine.kv)
    trees = engine.runner._step.trees
    assert trees is not None
    named |= {f"tree {name}": value for name, value in vars(trees).items() if isinstance(value, Tensor)}
    if isinstance(engine.drafter, ModelDrafter):
        named |= kv_buffers("drafter", engine.drafter.kv) | {"q": engine.drafter.q_RMV}
    if isinstance(engine.drafter, NgramDrafter):
        parts: list[object] = [engine.drafter, engine.drafter.index]
        if engine.drafter.pool is not None:
            parts += [engine.drafter.pool, engine.drafter.pool.index]
        for place, part in enumerate(parts):
            named |= {f"{place} {name}": value for name, value in vars(part).items() if isinstance(value, Tensor)}
    named |= {"logits": engine.runner._step.logits_NV, "chunk": engine.runner._prefill.chunk_3}
    named |= {"copied rows": engine._admission._copier._copy.rows_4}
    return {name: tensor.data_ptr() for name, tensor in named.items()}


@pytest.mark.parametrize("draft", DRAFTERS)
def test_no_buffer_is_replaced(draft: str) -> None:
    model = DraftModel(TINY, random_weights(TINY)) if draft == "model" else None
    engine = tiny_engine(draft_model=model, span_outputs=draft == "ngram", max_tree_nodes=8)
    before = buffers(engine)
    assert len(before) > 20
    for shapes in [(0,), (5,), (0, 3, 1), TREES]:
        engine.attach(Cycling(shapes))
        run_all(engine, MIXED, per_step=1)
    assert buffers(engine) == before
