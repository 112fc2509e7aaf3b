"""From a model's name to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import Drafter, NgramDrafter
from engine.memory import require_memory
from engine.models.decoder import Decoder
from engine.models.source import open_model

DEFAULT_CONTEXT = 2048
DRAFTERS: dict[str, Callable[[int], Drafter]] = {"ngram": NgramDrafter}


def make_drafter(name: str | None, max_gamma: int) -> Drafter | None:
    """A drafter by name; None drafts nothing."""
    if name is None:
        return None
    if name not in DRAFTERS:
        raise ValueError(f"drafter={name!r} is unknown: choose one of {', '.join(sorted(DRAFTERS))}, or none")
    return DRAFTERS[name](max_gamma)


def load_engine(
    model: str | Path = "smollm2-135m",
    *,
    revision: str | None = None,
    drafter: str | None = "ngram",
    max_batch: int = 8,
    context_len: int | None = None,
    max_gamma: int = 16,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LLMEngine:
    """Load a model and build an engine around it.

    `model` is a name that `adaptive models list` knows, a GGUF file, a Hugging Face folder, or the id of a model on the
    Hugging Face hub (`organisation/model`), of which `revision` chooses a branch, tag or commit.

    `context_len` is the tokens a row can hold, 2048 or the model's own limit where that is less. `backend` is `eager`
    on a CPU and `cuda` (CUDA graphs) on a GPU unless given. `threads` sets torch's CPU threads. `progress` is called
    with (bytes loaded, bytes in all). Raises ValueError for bad settings and files, FetchError when the hub does not
    give a model, MemoryError before allocating what does not fit.
    """
    source = open_model(model, revision)
    shape = source.config
    if context_len is not None and context_len > shape.context_len:
        raise ValueError(f"context_len={context_len} is above the model's own limit of {shape.context_len} tokens")
    config = EngineConfig(
        max_batch=max_batch,
        context_len=min(DEFAULT_CONTEXT, shape.context_len) if context_len is None else context_len,
        max_gamma=max_gamma,
        dtype=dtype,
        device=device,
        backend=backend or ("cuda" if device.startswith("cuda") else "eager"),
    )
    chosen = make_drafter(drafter, config.max_gamma)
    require_memory(shape, config, config.max_gamma if chosen else 0)
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = source.load(config.torch_dtype, progress)
    decoder = Decoder(checkpoint.config, checkpoint.weights, config.context_len, config.device)
    return LLMEngine(decoder, config, tokenizer=checkpoint.tokenizer, drafter=chosen)
