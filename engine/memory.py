"""Whether a model and its buffers fit, asked before anything is allocated."""

from __future__ import annotations

import psutil
import torch

from engine.config import EngineConfig
from engine.drafters.head_format import HeadFormat
from engine.kv import KVCache
from engine.models.config import ModelConfig

GIB = 1 << 30


def free_bytes(device: str) -> int:
    """Memory that can be allocated now, on the host or the GPU."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


Draft = ModelConfig | HeadFormat | None
"""What drafts: a whole model of this shape, a trained drafter, or nothing that takes memory."""


def bytes_needed(
    model: ModelConfig, config: EngineConfig, max_gamma: int, draft: Draft = None, index: int = 0
) -> dict[str, int]:
    """What loading an engine takes at its peak, by purpose. A `draft` that is `model` itself shares its weights.

    `index` is what an n-gram index takes.
    """
    dtype = config.torch_dtype
    if isinstance(draft, HeadFormat):
        max_gamma = draft.max_gamma(max_gamma)
    distribution = model.vocab_size * max(dtype.itemsize, 4)
    grows = max_gamma > 0 and not (isinstance(draft, HeadFormat) and draft.kind != "draft")
    widest = max(max_gamma, config.max_tree_nodes if grows else 0)
    needed = {
        "weights": _weight_bytes(model, config),
        "KV cache": KVCache.bytes_needed(model, config.max_batch, config.context_len, dtype),
        "logits": config.max_batch * (widest + 1) * distribution,
    }
    if index:
        needed["n-gram index"] = index
    if isinstance(draft, HeadFormat):
        needed |= _heads_bytes(draft, config)
        needed["draft distributions"] = config.max_batch * max_gamma * distribution
    elif draft is not None:
        limit = min(config.context_len, draft.context_len)
        needed["draft weights"] = 0 if draft is model else _weight_bytes(draft, config)
        needed["draft KV cache"] = KVCache.bytes_needed(draft, config.max_batch, limit, dtype)
        needed["draft distributions"] = config.max_batch * max_gamma * distribution
    return needed


def _heads_bytes(heads: HeadFormat, config: EngineConfig) -> dict[str, int]:
    """What a trained drafter takes; its weights and its copy of the target's head are repacked on a CPU too."""
    item, copies = config.torch_dtype.itemsize, 2 if torch.device(config.device).type == "cpu" else 1
    weights = sum(tensor.num_elements for tensor in heads.tensors.values() if not tensor.is_table)
    needed = {
        "drafter weights": copies * weights * item,
        "drafter's slice of the head": copies * heads.copied_rows * heads.hidden_size * item,
    }
    rows, length = config.max_batch, config.context_len
    if heads.kind == "draft":
        length = min(length, heads.block.context_len)
    else:
        sources = heads.count if heads.kind == "mtp" else 1
        needed["features"] = sources * (rows * length + 1) * heads.hidden_size * item
    if heads.block_shape is not None:
        needed["drafter KV cache"] = KVCache.bytes_needed(heads.block_shape, rows, length, config.torch_dtype)
    return needed


def _weight_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """On a CPU weights are there twice while they are repacked; a tied embedding stays twice: table and packed head."""
    weights = model.weight_bytes(config.torch_dtype)
    if torch.device(config.device).type != "cpu":
        return weights
    return 2 * weights + model.tie_embeddings * model.vocab_size * model.hidden_size * config.torch_dtype.itemsize


def require_memory(
    model: ModelConfig, config: EngineConfig, max_gamma: int, draft: Draft = None, index: int = 0
) -> None:
    """Raise MemoryError, with what was asked and what there is, unless everything fits."""
    if torch.device(config.device).type != "cpu":
        _require("cpu", {"weights on their way": model.weight_bytes(config.torch_dtype)}, config)
    _require(config.device, bytes_needed(model, config, max_gamma, draft, index), config)


def _require(device: str, needed: dict[str, int], config: EngineConfig) -> None:
    total, free = sum(needed.values()), free_bytes(device)
    if total <= free:
        return
    parts = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in needed.items())
    raise MemoryError(
        f"{total / GIB:.2f} GiB is needed on {device} ({parts}) and {free / GIB:.2f} GiB is free: "
        f"lower max_batch={config.max_batch} or context_len={config.context_len}, or take a smaller dtype"
    )
