"""From a model's name to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.memory import require_memory
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.fetch import resolve_model
from engine.models.gguf import load_gguf, read_config
from engine.models.gguf_file import GgufFile
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

DEFAULT_CONTEXT = 2048
DRAFTERS = ("ngram", "model")

Progress = Callable[[int, int], None]


def load_engine(
    model: str | Path = "smollm2-135m",
    *,
    drafter: str | None = "ngram",
    draft_model: str | Path | None = None,
    max_batch: int = 8,
    context_len: int | None = None,
    max_gamma: int = 16,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str | None = None,
    threads: int | None = None,
    synthetic: SyntheticAcceptance | None = None,
    progress: Progress | None = None,
) -> LLMEngine:
    """Load a model (a name that `adaptive models list` knows, or a GGUF file) and build an engine around it.

    `drafter` is `ngram`, `model` or None; `model` drafts with `draft_model`, named like `model`, of the same tokenizer.
    `context_len` is the tokens a row can hold, 2048 or the model's own limit where that is less. `backend` is `eager`
    on a CPU and `cuda` (CUDA graphs) on a GPU unless given. `threads` sets torch's CPU threads. `synthetic` asks for an
    acceptance rate instead of finding it out: outputs are then meaningless. `progress` is called with (bytes loaded,
    bytes in all), per file. Raises ValueError for bad settings and files, MemoryError before allocating what does not
    fit.
    """
    _check_drafter(drafter, draft_model)
    file = GgufFile(resolve_model(model))
    shape = read_config(file)
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
    draft_file, draft_shape = _draft_file(draft_model, file, shape)
    if synthetic is not None:
        synthetic.conditional(config.max_gamma if drafter else 0)  # refused before minutes of loading
    require_memory(shape, config, config.max_gamma if drafter else 0, draft_shape)
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = load_gguf(file, config.torch_dtype, progress=progress)
    decoder = Decoder(checkpoint.config, checkpoint.weights, config.context_len, config.device)
    chosen: Drafter | None = NgramDrafter(config.max_gamma) if drafter == "ngram" else None
    if draft_file is file:
        chosen = ModelDrafter(decoder, config, shape.vocab_size, same_tokenizer=True)
    elif draft_file is not None:
        draft = load_gguf(draft_file, config.torch_dtype, progress=progress)
        chosen = _model_drafter(draft, checkpoint, config)
    return LLMEngine(decoder, config, tokenizer=checkpoint.tokenizer, drafter=chosen, synthetic=synthetic)


def _check_drafter(drafter: str | None, draft_model: str | Path | None) -> None:
    if drafter is not None and drafter not in DRAFTERS:
        raise ValueError(f"drafter={drafter!r} is unknown: choose one of {', '.join(DRAFTERS)}, or none")
    if (drafter == "model") != (draft_model is not None):
        raise ValueError(f"drafter={drafter!r} and draft_model={draft_model!r}: drafter='model' takes a draft_model")


def _draft_file(
    draft_model: str | Path | None, file: GgufFile, shape: ModelConfig
) -> tuple[GgufFile | None, ModelConfig | None]:
    """The target's own file and shape where it drafts for itself, so that its weights are loaded once."""
    if draft_model is None:
        return None, None
    path = resolve_model(draft_model)
    if path.samefile(file.path):
        return file, shape
    draft_file = GgufFile(path)
    return draft_file, read_config(draft_file)


def _model_drafter(draft: Checkpoint, target: Checkpoint, config: EngineConfig) -> ModelDrafter:
    decoder = Decoder(draft.config, draft.weights, min(config.context_len, draft.config.context_len), config.device)
    same = same_tokens(draft.tokenizer, target.tokenizer)
    return ModelDrafter(decoder, config, target.config.vocab_size, same_tokenizer=same)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether every token id stands for the same text in both."""
    ids = range(max(one.vocab_size, other.vocab_size))
    return all(one.token_bytes([token]) == other.token_bytes([token]) for token in ids)
