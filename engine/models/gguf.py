"""GGUF to a Checkpoint: Hugging Face names and row order, dequantised tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.gguf_file import GgufFile
from engine.models.gguf_vocab import load_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral files say "llama"

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BIASED = ("attn_q", "attn_k", "attn_v")


def load_gguf(
    source: str | Path | GgufFile,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Checkpoint:
    """Load a Llama-family model from a path or an open file. `progress(done, total)` is told bytes of its tensors.

    ValueError when the file is missing, not GGUF, truncated, or of a kind that is not supported (named).
    """
    file = source if isinstance(source, GgufFile) else GgufFile(Path(source))
    config = read_config(file)
    names = _expected_names(config)
    _require_tensors(file, names)
    tokenizer = load_tokenizer(file)
    permuted = file.text("general.architecture") == "llama"
    sizes = dict(file.tensor_bytes())
    weights: dict[str, torch.Tensor] = {}
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        values = file.floats(name)
        if permuted and ".attn_q." in name:
            values = _half_split_rows(values, config.num_heads)
        elif permuted and ".attn_k." in name:
            values = _half_split_rows(values, config.num_kv_heads)
        weights[names[name]] = torch.from_numpy(np.array(values)).to(dtype)
        done += size
        if progress is not None:
            progress(done, total)
    return Checkpoint(config, weights, tokenizer)


def read_config(file: GgufFile) -> ModelConfig:
    """The model's shape from metadata and tensor names; refuses what the decoder would compute wrongly."""
    arch = file.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    _refuse_variants(file, arch)
    hidden, heads = file.integer(f"{arch}.embedding_length"), file.integer(f"{arch}.attention.head_count")
    head_dim = file.integer(f"{arch}.attention.key_length", hidden // heads)
    rotary = file.integer(f"{arch}.rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ValueError(f"{file.path}: rotary embedding of {rotary} of {head_dim} dimensions is not supported")
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} has no tensor 'token_embd.weight': the file is not a complete language model")
    return ModelConfig(
        vocab_size=int(file.tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=file.integer(f"{arch}.feed_forward_length"),
        num_layers=file.integer(f"{arch}.block_count"),
        num_heads=heads,
        num_kv_heads=file.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        context_len=file.integer(f"{arch}.context_length"),
        rope_theta=file.number(f"{arch}.rope.freq_base", 10000.0),
        norm_eps=file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=file.integer(f"{arch}.attention.sliding_window", 0) or None,
    )


def _refuse_variants(file: GgufFile, arch: str) -> None:
    scaling = file.text(f"{arch}.rope.scaling.type", "none")
    checks = (
        (file.integer(f"{arch}.expert_count", 0) > 0, "a mixture of experts"),
        (scaling != "none" or "rope_freqs.weight" in file.tensors, f"scaled rotary embedding ({scaling})"),
        (file.integer("split.count", 1) > 1, "one part of a split file (join the parts with llama-gguf-split --merge)"),
    )
    for refused, what in checks:
        if refused:
            raise ValueError(f"{file.path}: {what} is not supported")


def _expected_names(config: ModelConfig) -> dict[str, str]:
    """GGUF name to Hugging Face name, for exactly the tensors a model of this shape has."""
    top = [name for name in TOP_NAMES if name != "output" or not config.tie_embeddings]
    layer = [name for name in LAYER_NAMES if config.qk_norm or name not in ("attn_q_norm", "attn_k_norm")]
    names = {f"{name}.weight": f"{TOP_NAMES[name]}.weight" for name in top}
    for index in range(config.num_layers):
        here, there = f"blk.{index}", f"model.layers.{index}"
        names |= {f"{here}.{name}.weight": f"{there}.{LAYER_NAMES[name]}.weight" for name in layer}
        if config.qkv_bias:
            names |= {f"{here}.{name}.bias": f"{there}.{LAYER_NAMES[name]}.bias" for name in BIASED}
    return names


def _require_tensors(file: GgufFile, names: dict[str, str]) -> None:
    missing = sorted(names.keys() - file.tensors.keys())
    unknown = sorted(file.tensors.keys() - names.keys())
    for problem, tensors in (("lacks the tensor", missing), ("has a tensor that is not supported:", unknown)):
        if tensors:
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            raise ValueError(f"{file.path} {problem} {tensors[0]!r}{more}")


def _half_split_rows(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of Q and K, which puts the two dimensions that rotate together side by side."""
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
