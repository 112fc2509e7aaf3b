from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.contract import ceil_bucket
from engine.config import EngineConfig, context_buckets, doubling_buckets, token_buckets


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch": 0}, "max_batch=0 is not valid: it must be at least 1"),
        ({"context_len": 1}, "context_len=1 is not valid: it must be at least 2"),
        ({"max_gamma": -1}, "max_gamma=-1 is not valid: it must be from 0 to 64"),
        ({"max_gamma": 65}, "max_gamma=65 is not valid"),
        ({"max_tree_nodes": -1}, r"max_tree_nodes=-1 is not valid: it must be from 0 \(no trees\) to 256"),
        ({"prefill_chunk": 0}, "prefill_chunk=0 is not valid"),
        ({"dtype": "int8"}, "dtype='int8' is not valid: it must be one of float32, bfloat16, float64, float16"),
        ({"backend": "graph"}, "backend='graph' is not valid: it must be one of eager, cuda"),
        ({"backend": "cuda"}, "backend='cuda' is not valid: it must be eager unless device is cuda"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**settings)  # type: ignore[arg-type]


def test_a_gpu_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda:1' is not valid: it must be cpu: torch finds no CUDA device"):
        EngineConfig(device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert EngineConfig(device="cuda", backend="cuda").backend == "cuda"


@pytest.mark.parametrize("backend", ["replay", "late"])
def test_backends_for_tests_stay_on_the_cpu(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EngineConfig(backend=backend).backend == backend
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=f"backend='{backend}' is not valid: it must be eager or cuda on a GPU"):
        EngineConfig(device="cuda", backend=backend)


def test_dtypes() -> None:
    assert EngineConfig(dtype="bfloat16").torch_dtype is torch.bfloat16


@pytest.mark.parametrize("ladder", [doubling_buckets, context_buckets, token_buckets])
@given(largest=st.integers(1, 3000), data=st.data())
def test_buckets_ascend_to_the_largest_and_hold_every_size(ladder: object, largest: int, data: st.DataObject) -> None:
    assert callable(ladder)
    buckets = ladder(largest)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == largest
    size = data.draw(st.integers(1, largest))
    assert size <= ceil_bucket(buckets, size) <= largest


def test_examples() -> None:
    assert doubling_buckets(8) == (1, 2, 4, 8)
    assert doubling_buckets(6) == (1, 2, 4, 6)
    assert doubling_buckets(1) == (1,)
    assert context_buckets(300) == (64, 96, 128, 192, 256, 300)
    assert context_buckets(50) == (50,)
    assert token_buckets(20) == (*range(1, 17), 20)


@given(largest=st.integers(1, 3000), share=st.floats(0, 1))
def test_little_is_wasted(largest: int, share: float) -> None:
    """At most a third of a context beyond 64, at most a fifth of a step's tokens."""
    size = max(1, round(share * largest))
    context, tokens = ceil_bucket(context_buckets(largest), size), ceil_bucket(token_buckets(largest), size)
    assert context <= 64 or context - size <= context / 3
    assert tokens - size <= tokens / 5
