"""What is said before loading is what is then there, and what does not fit is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from engine import EnginePlan, LLMEngine, load_engine, load_plans, memory, plan_engine
from engine.config import EngineConfig
from engine.drafters.head_format import Kind
from engine.footprint import footprint
from engine.memory import GIB, free_bytes, plan_memory, require_memory
from engine.models.config import ModelConfig
from engine.models.source import ModelSource, open_model
from tests.engine.gguf_files import TinyGguf
from tests.engine.heads import HeadSpec, write_heads

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
CONFIG = EngineConfig(max_batch=32, context_len=8192, max_gamma=7, dtype="bfloat16")
SIZES: dict[str, Any] = {"max_batch": 3, "context_len": 100, "max_gamma": 4}
KINDS: tuple[Kind, ...] = ("eagle1", "eagle3", "medusa", "mtp", "draft")


def unread(dtype: torch.dtype, progress: object) -> NoReturn:
    raise AssertionError("nothing may be read to plan memory")


SOURCE = ModelSource("big", BIG, unread)
PLAIN = EnginePlan(SOURCE, CONFIG, None)


def with_model(shape: ModelConfig) -> EnginePlan:
    return EnginePlan(SOURCE, CONFIG, "model", ModelSource("small", shape, unread))


def total(*plans: EnginePlan) -> int:
    needed = plan_memory(plans)
    return needed.total + needed.passing


# --- what is said ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf().write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other kinds of layers, a head of its own, the same tokenizer."""
    return TinyGguf(arch="qwen2", tied=False).write(tmp_path_factory.mktemp("model") / "other.gguf")


@pytest.fixture(scope="module")
def heads(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def written(kind: Kind, ids: Sequence[int] | None = range(3, 80)) -> Path:
        count = 1 if kind.startswith("eagle") else 2
        spec = HeadSpec(kind, open_model(model).config, None if ids is None else tuple(ids), count=count)
        return write_heads(tmp_path_factory.mktemp(kind), spec)

    return written


def allocated(make: Callable[[], object]) -> tuple[object, int]:
    """What `make` gives, and the bytes of all tensors that are alive afterwards and were not before."""
    before = set(alive())
    made = make()
    return made, sum(size for storage, size in alive().items() if storage not in before)


def alive() -> dict[int, int]:
    """Bytes of every storage that some tensor uses. oneDNN's packed tensors have none that can be looked at."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or thing.device.type == "meta":
            continue
        if thing.is_mkldnn:
            found[id(thing)] = thing.numel() * thing.element_size()
        else:
            storage = thing.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "spanning", "itself", "other", *KINDS, "draft, whole head"])
def test_what_is_said_is_what_is_then_there(
    model: Path, other: Path, heads: Callable[..., Path], drafter: str, dtype: str
) -> None:
    asked: dict[str, dict[str, Any]] = {
        "none": {"drafter": None},
        "ngram": {"max_tree_nodes": 9},
        "spanning": {"span_outputs": True},
        "itself": {"drafter": "model", "draft_model": model, "max_tree_nodes": 9},
        "other": {"drafter": "model", "draft_model": other},
        "draft": {"drafter": "model"},
        "draft, whole head": {"drafter": "model", "draft_model": heads("draft", None)},
    }
    options = asked.get(drafter, {"drafter": drafter}) | SIZES | {"dtype": dtype}
    if drafter in KINDS:
        options["draft_model"] = heads(drafter)
    planned = plan_memory([plan_engine(model, **options)])
    engine, there = allocated(lambda: load_engine(model, **options))
    print(f"\n{drafter}, {dtype}: {planned.total} bytes planned, {there} there, {planned.total / there - 1:+.1%}")
    assert planned.total == pytest.approx(there, rel=0.1)
    assert isinstance(engine, LLMEngine)
    assert footprint(engine) == planned.engines[0], "each purpose by itself"


def test_engines_around_one_model_share_its_weights(model: Path, heads: Callable[..., Path]) -> None:
    source = open_model(model)
    plans = [
        plan_engine(source, drafter=None, **SIZES),
        plan_engine(source, drafter="eagle3", draft_model=heads("eagle3"), **SIZES),
        plan_engine(source, drafter="model", draft_model=model, **SIZES),
    ]
    planned = plan_memory(plans)
    engines, there = allocated(lambda: load_plans(plans))
    assert planned.total == pytest.approx(there, rel=0.1)
    assert isinstance(engines, list)
    assert len({id(engine.decoder) for engine in engines}) == 1
    assert ["target weights" in engine for engine in planned.engines] == [True, False, False]


def test_only_engines_of_one_kind_share(model: Path) -> None:
    source = open_model(model)
    plans = [plan_engine(source, dtype=dtype, **SIZES) for dtype in ("float32", "float64")]
    with pytest.raises(ValueError, match="one model source, dtype and device"):
        load_plans(plans)
    with pytest.raises(ValueError, match="one model source, dtype and device"):
        load_plans([plan_engine(model, **SIZES), plan_engine(model, **SIZES)])


def test_purposes_of_a_large_model() -> None:
    (plain,) = plan_memory([PLAIN]).engines
    assert plain["target KV cache"] == (32 * 8192 + 1) * 16 * 2 * 8 * 64 * 2
    small = replace(BIG, num_layers=2, context_len=4096, vocab_size=1 << 16)
    (drafted,) = plan_memory([with_model(small)]).engines
    assert drafted["drafter KV cache"] == (32 * 4096 + 1) * 2 * 2 * 8 * 64 * 2, (
        "its rows are no longer than its context"
    )
    assert drafted["draft distributions"] == 32 * 7 * (1 << 17) * 4
    assert drafted["drafter weights"] == pytest.approx(small.weight_bytes(torch.bfloat16), rel=0.01)
    (itself,) = plan_memory([EnginePlan(SOURCE, CONFIG, "model", SOURCE)]).engines
    assert "drafter weights" not in itself, "with itself as drafter they are shared"


def test_trees_make_room_for_their_nodes() -> None:
    def buffers(drafter: str | None, nodes: int) -> int:
        plan = EnginePlan(SOURCE, replace(CONFIG, max_tree_nodes=nodes), drafter)
        return plan_memory([plan]).engines[0]["step buffers"]

    row = 32 * (1 << 17) * 4
    assert buffers("ngram", 9) - buffers("ngram", 0) == pytest.approx(2 * row, rel=0.01)
    assert buffers(None, 9) == buffers(None, 0), "nothing fills trees"


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_what_was_asked_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * GIB // 2)
    with pytest.raises(MemoryError) as caught:
        require_memory([PLAIN])
    message = str(caught.value)
    assert message.startswith(f"{total(PLAIN) / GIB:.2f} GiB is needed on cpu")
    for name, size in plan_memory([PLAIN]).engines[0].items():
        assert f"{name} {size / GIB:.2f} GiB" in message
    assert "1.50 GiB is free" in message
    assert "lower max_batch=32 or context_len=8192, or take a smaller dtype" in message


def test_what_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = total(PLAIN)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    require_memory([PLAIN])
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed - 1)
    with pytest.raises(MemoryError):
        require_memory([PLAIN])


def test_what_only_the_draft_model_makes_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = total(PLAIN)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    require_memory([PLAIN])
    with pytest.raises(MemoryError, match=r"drafter KV cache .* draft distributions .* drafter weights"):
        require_memory([with_model(replace(BIG, num_layers=1))])


def test_several_engines_have_to_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = total(PLAIN)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    with pytest.raises(MemoryError):
        require_memory([PLAIN, PLAIN])
    assert total(PLAIN, PLAIN) < 2 * needed, "weights are there once"


def test_this_machine_has_memory() -> None:
    assert free_bytes("cpu") > 0
