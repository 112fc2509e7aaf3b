from __future__ import annotations

from dataclasses import replace

import pytest

from engine import memory
from engine.config import EngineConfig
from engine.drafters import ModelDrafter, NgramDrafter
from engine.drafters.ngram import index_bytes
from engine.memory import GIB, bytes_needed, free_bytes, require_memory
from engine.models.config import ModelConfig
from tests.engine.tiny import TINY, DraftModel, random_weights, tiny_engine

BIG = ModelConfig(
    vocab_size=1 << 17,
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=16,
    num_heads=16,
    num_kv_heads=8,
    head_dim=64,
    context_len=1 << 16,
    tie_embeddings=False,
)
CONFIG = EngineConfig(max_batch=32, context_len=8192, dtype="bfloat16")


def test_what_does_not_fit_is_refused_with_what_was_asked_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * GIB // 2)
    needed = bytes_needed(BIG, CONFIG, max_gamma=7)
    with pytest.raises(MemoryError) as caught:
        require_memory(BIG, CONFIG, max_gamma=7)
    message = str(caught.value)
    assert message.startswith(f"{sum(needed.values()) / GIB:.2f} GiB is needed on cpu")
    for name, size in needed.items():
        assert f"{name} {size / GIB:.2f} GiB" in message
    assert "1.50 GiB is free" in message
    assert "lower max_batch=32 or context_len=8192, or take a smaller dtype" in message


def test_what_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(bytes_needed(BIG, CONFIG, max_gamma=7).values())
    monkeypatch.setattr(memory, "free_bytes", lambda device: total)
    require_memory(BIG, CONFIG, max_gamma=7)
    monkeypatch.setattr(memory, "free_bytes", lambda device: total - 1)
    with pytest.raises(MemoryError):
        require_memory(BIG, CONFIG, max_gamma=7)


def test_the_numbers_are_what_the_buffers_take() -> None:
    assert bytes_needed(BIG, CONFIG, 0)["KV cache"] == (32 * 8192 + 1) * 16 * 2 * 8 * 64 * 2
    engine = tiny_engine(max_batch=3, max_gamma=4)
    needed = bytes_needed(TINY, engine.config, max_gamma=4)
    assert needed["KV cache"] == sum(half.nbytes for half in (*engine.kv.keys, *engine.kv.values))
    assert needed["logits"] == engine.runner._step.logits_NV.nbytes


def test_a_draft_model_counts() -> None:
    small = replace(BIG, num_layers=2, context_len=4096, vocab_size=1 << 16)
    plain, drafted = bytes_needed(BIG, CONFIG, 7), bytes_needed(BIG, CONFIG, 7, draft=small)
    assert {name: drafted[name] for name in plain} == plain
    assert drafted["draft weights"] == 2 * small.weight_bytes(CONFIG.torch_dtype)  # once more while being repacked
    assert drafted["draft KV cache"] == (32 * 4096 + 1) * 2 * 2 * 8 * 64 * 2, "its rows are no longer than its context"
    assert bytes_needed(BIG, CONFIG, 7, draft=BIG)["draft weights"] == 0, "with itself as drafter they are shared"
    config = replace(TINY, context_len=30)
    engine = tiny_engine(max_batch=3, max_gamma=4, draft_model=DraftModel(config, random_weights(config)))
    needed = bytes_needed(TINY, engine.config, 4, draft=config)
    assert isinstance(engine.drafter, ModelDrafter)
    kv = engine.drafter.kv
    assert needed["draft KV cache"] == sum(half.nbytes for half in (*kv.keys, *kv.values))
    assert needed["draft distributions"] == engine.drafter.q_RMV.nbytes


@pytest.mark.parametrize("span_outputs", [False, True])
def test_an_ngram_index_counts(span_outputs: bool) -> None:
    config = EngineConfig(max_batch=3, context_len=100)
    drafter = NgramDrafter(config, span_outputs=span_outputs)
    kept = [drafter.index.ends_RX, *([drafter.pool.index.ends_RX, drafter.pool.ring_Q] if drafter.pool else [])]
    size = index_bytes(config, span_outputs=span_outputs)
    assert size == sum(tensor.nbytes for tensor in kept)
    assert bytes_needed(BIG, CONFIG, 7, index=size) == {**bytes_needed(BIG, CONFIG, 7), "n-gram index": size}


def test_what_only_the_draft_model_makes_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(bytes_needed(BIG, CONFIG, max_gamma=7).values())
    monkeypatch.setattr(memory, "free_bytes", lambda device: total)
    require_memory(BIG, CONFIG, 7)
    with pytest.raises(MemoryError, match=r"draft weights .* draft KV cache .* draft distributions"):
        require_memory(BIG, CONFIG, 7, draft=replace(BIG, num_layers=1))


def test_this_machine_has_memory() -> None:
    assert free_bytes("cpu") > 0


def test_trees_make_room_for_their_nodes() -> None:
    engine = tiny_engine(max_batch=3, max_gamma=4, max_tree_nodes=9)
    assert bytes_needed(TINY, engine.config, max_gamma=4)["logits"] == engine.runner._step.logits_NV.nbytes
    without = tiny_engine(max_batch=3, draft=False, max_tree_nodes=9)
    assert bytes_needed(TINY, without.config, max_gamma=0)["logits"] == without.runner._step.logits_NV.nbytes
