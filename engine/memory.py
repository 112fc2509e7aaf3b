"""Whether a model and its buffers fit, asked before anything is allocated."""

from __future__ import annotations

import psutil
import torch

from engine.config import EngineConfig
from engine.kv import KVCache
from engine.models.config import ModelConfig

GIB = 1 << 30


def free_bytes(device: str) -> int:
    """Memory that can be allocated now, on the host or the GPU."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def bytes_needed(
    model: ModelConfig, config: EngineConfig, max_gamma: int, draft: ModelConfig | None = None
) -> dict[str, int]:
    """What loading an engine takes at its peak, by purpose. A `draft` that is `model` itself shares its weights."""
    dtype = config.torch_dtype
    distribution = model.vocab_size * max(dtype.itemsize, 4)
    needed = {
        "weights": _weight_bytes(model, config),
        "KV cache": KVCache.bytes_needed(model, config.max_batch, config.context_len, dtype),
        "logits": config.max_batch * (max(max_gamma, config.max_tree_nodes if max_gamma else 0) + 1) * distribution,
    }
    if draft is not None:
        limit = min(config.context_len, draft.context_len)
        needed["draft weights"] = 0 if draft is model else _weight_bytes(draft, config)
        needed["draft KV cache"] = KVCache.bytes_needed(draft, config.max_batch, limit, dtype)
        needed["draft distributions"] = config.max_batch * max_gamma * distribution
    return needed


def _weight_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """On a CPU weights are there twice while they are repacked; a tied embedding stays twice: table and packed head."""
    weights = model.weight_bytes(config.torch_dtype)
    if torch.device(config.device).type != "cpu":
        return weights
    return 2 * weights + model.tie_embeddings * model.vocab_size * model.hidden_size * config.torch_dtype.itemsize


def require_memory(model: ModelConfig, config: EngineConfig, max_gamma: int, draft: ModelConfig | None = None) -> None:
    """Raise MemoryError, with what was asked and what there is, unless everything fits."""
    if torch.device(config.device).type != "cpu":
        _require("cpu", {"weights on their way": model.weight_bytes(config.torch_dtype)}, config)
    _require(config.device, bytes_needed(model, config, max_gamma, draft), config)


def _require(device: str, needed: dict[str, int], config: EngineConfig) -> None:
    total, free = sum(needed.values()), free_bytes(device)
    if total <= free:
        return
    parts = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in needed.items())
    raise MemoryError(
        f"{total / GIB:.2f} GiB is needed on {device} ({parts}) and {free / GIB:.2f} GiB is free: "
        f"lower max_batch={config.max_batch} or context_len={config.context_len}, or take a smaller dtype"
    )
