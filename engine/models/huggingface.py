"""A Hugging Face folder to a Checkpoint: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.hf_config import read_config
from engine.models.hf_tokenizer import load_tokenizer
from engine.models.tensor_files import StoredTensor, open_tensors

Shapes = dict[str, tuple[int, ...]]

RECOMPUTED = ".rotary_emb.inv_freq"  # old checkpoints store the rotary frequencies, which follow from the config


def load_huggingface(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Checkpoint:
    """Load a Llama-family model, casting tensor by tensor. `progress(done, total)` is told bytes of its files.

    ValueError when a file is missing or damaged, a tensor too many, missing or of another shape, or the model of a kind
    that is not supported (all named).
    """
    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    shapes = tensor_shapes(config)
    tensors = {name: one for name, one in open_tensors(folder).items() if not _ignored(name, config)}
    _require_tensors(folder, tensors, shapes)
    done, total = 0, sum(tensor.num_bytes for tensor in tensors.values())
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        weights[name] = tensor.read(dtype)
        done += tensor.num_bytes
        if progress is not None:
            progress(done, total)
    return Checkpoint(config, weights, tokenizer, name=str(folder))


def tensor_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of exactly the tensors that a model of this shape has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        sizes = {"q": q_size, "k": kv_size, "v": kv_size}
        layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    if config.out_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        layer |= {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in ("q", "k")}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _ignored(name: str, config: ModelConfig) -> bool:
    return name.endswith(RECOMPUTED) or (name == "lm_head.weight" and config.tie_embeddings)


def _require_tensors(folder: Path, tensors: Mapping[str, StoredTensor], shapes: Shapes) -> None:
    missing = sorted(shapes.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - shapes.keys())
    for problem, names in (("lacks the tensor", missing), ("has a tensor that is not supported:", unknown)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"{folder} {problem} {names[0]!r}{more}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{tensors[name].path}: tensor {name!r} has shape {list(tensors[name].shape)}, "
                f"and by config.json it must have {list(shape)}"
            )
