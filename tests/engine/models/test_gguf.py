from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engine.models.config import ModelConfig
from engine.models.gguf import load_gguf
from tests.engine.gguf_files import CONTEXT, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, TOKENS, TinyGguf


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_weights_come_back_under_hugging_face_names(tmp_path: Path, arch: str, tied: bool) -> None:
    tiny = TinyGguf(arch=arch, tied=tied)
    checkpoint = load_gguf(tiny.write(tmp_path / "tiny.gguf"))
    expected = tiny.weights()
    assert checkpoint.weights.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(checkpoint.weights[name], torch.from_numpy(weight)), name
    assert checkpoint.config == ModelConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        context_len=CONTEXT,
        rope_theta=5000.0,
        norm_eps=float(np.float32(1e-6)),
        tie_embeddings=tied,
        qkv_bias=arch == "qwen2",
        qk_norm=arch == "qwen3",
    )
    assert checkpoint.config.num_parameters() == sum(weight.size for weight in expected.values())


def test_quantized_weights_are_dequantized_and_cast(tmp_path: Path) -> None:
    tiny = TinyGguf(quantized=True)
    checkpoint = load_gguf(tiny.write(tmp_path / "tiny.gguf"), torch.bfloat16)
    eight_bit = gguf.GGMLQuantizationType.Q8_0
    for name, weight in tiny.weights().items():
        stored = dequantize(quantize(weight, eight_bit), eight_bit) if weight.ndim == 2 else weight
        assert torch.equal(checkpoint.weights[name], torch.from_numpy(stored).bfloat16()), name


def test_sliding_window_is_read(tmp_path: Path) -> None:
    path = TinyGguf(integers={"llama.attention.sliding_window": 32}).write(tmp_path / "tiny.gguf")
    assert load_gguf(path).config.sliding_window == 32


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = load_gguf(TinyGguf().write(tmp_path / "tiny.gguf"), progress=lambda *at: seen.append(at))
    total = checkpoint.config.weight_bytes(torch.float32)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (TinyGguf(arch="gemma3"), "architecture 'gemma3' is not supported; supported: llama, qwen2, qwen3"),
        (TinyGguf(integers={"llama.expert_count": 8}), "a mixture of experts is not supported"),
        (TinyGguf(texts={"llama.rope.scaling.type": "yarn"}), r"scaled rotary embedding \(yarn\) is not supported"),
        (TinyGguf(extra={"rope_freqs.weight": np.ones(8, np.float32)}), "scaled rotary embedding"),
        (TinyGguf(integers={"llama.rope.dimension_count": 8}), "rotary embedding of 8 of 24 dimensions"),
        (TinyGguf(integers={"split.count": 3}), "one part of a split file"),
        (TinyGguf(without=("blk.1.ffn_up.weight",)), "lacks the tensor 'blk.1.ffn_up.weight'"),
        (TinyGguf(without=("token_embd.weight",)), "has no tensor 'token_embd.weight'"),
        (TinyGguf(extra={"blk.0.surprise": np.ones(8, np.float32)}), "not supported: 'blk.0.surprise'"),
        (TinyGguf(tokenizer="llama"), "tokenizer model 'llama' is not supported; supported: 'gpt2'"),
        (TinyGguf(pre="tekken"), "pre-tokenizer 'tekken' is not supported; supported: 'gpt-2', 'default', 'smollm'"),
        (TinyGguf(chat_template="{% for %}"), "chat template is not valid Jinja"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, tiny: TinyGguf, message: str) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match=message):
        load_gguf(path)


def test_files_that_are_not_models(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    with pytest.raises(ValueError, match=r"no model file at '.*missing\.gguf'"):
        load_gguf(missing)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ValueError, match=r"other\.gguf is not a GGUF file: it starts with b'PK"):
        load_gguf(other)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ValueError, match=r"empty\.gguf is not a GGUF file: it starts with b''"):
        load_gguf(empty)


@pytest.mark.parametrize("share", [0.00005, 0.01, 0.05, 0.5, 0.999])
def test_a_truncated_file_says_so(tmp_path: Path, share: float) -> None:
    whole = TinyGguf().write(tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: max(4, int(len(whole) * share))])
    with pytest.raises(ValueError, match=r"cut\.gguf is a GGUF file but can not be read: it is truncated or damaged"):
        load_gguf(cut)
