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
from engine.models.decoder import Decoder
from engine.models.source import ModelSource, open_model
from engine.models.vocabulary import same_vocabulary

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

DEFAULT_CONTEXT = 2048
DRAFTERS = ("ngram", "model")

Progress = Callable[[int, int], None]


def load_engine(
    model: str | Path = "smollm2-135m",
    *,
    revision: str | None = None,
    drafter: str | None = "ngram",
    draft_model: str | Path | None = None,
    max_batch: int = 8,
    context_len: int | None = None,
    max_gamma: int = 16,
    max_tree_nodes: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str | None = None,
    threads: int | None = None,
    synthetic: SyntheticAcceptance | None = None,
    progress: Progress | None = None,
) -> LLMEngine:
    """Load a model and build an engine around it.

    `model` is a name that `adaptive models list` knows, a GGUF file, a Hugging Face folder, or the id of a model on the
    Hugging Face hub (`organisation/model`), of which `revision` chooses a branch, tag or commit.

    `drafter` is `ngram`, `model` or None; `model` drafts with `draft_model`, named like `model`, of the same tokenizer.
    `context_len` is the tokens a row can hold, 2048 or the model's own limit where that is less. `backend` is `eager`
    on a CPU and `cuda` (CUDA graphs) on a GPU unless given. `max_tree_nodes` above 0 lets policies draft trees of up to
    so many tokens per request. `threads` sets torch's CPU threads. `synthetic` asks for an
    acceptance rate instead of finding it out: outputs are then meaningless. `progress` is called with (bytes loaded,
    bytes in all), per model. Raises ValueError for bad settings and files, FetchError when the hub does not give a
    model, MemoryError before allocating what does not fit.
    """
    _check_drafter(drafter, draft_model)
    source = open_model(model, revision)
    shape = source.config
    if context_len is not None and context_len > shape.context_len:
        raise ValueError(f"context_len={context_len} is above the model's own limit of {shape.context_len} tokens")
    config = EngineConfig(
        max_batch=max_batch,
        context_len=min(DEFAULT_CONTEXT, shape.context_len) if context_len is None else context_len,
        max_gamma=max_gamma,
        max_tree_nodes=max_tree_nodes,
        dtype=dtype,
        device=device,
        backend=backend or ("cuda" if device.startswith("cuda") else "eager"),
    )
    draft = _draft_source(draft_model, source)
    if synthetic is not None:
        synthetic.conditional(config.max_gamma if drafter else 0)  # refused before minutes of loading
    require_memory(shape, config, config.max_gamma if drafter else 0, draft.config if draft else None)
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = source.load(config.torch_dtype, progress)
    decoder = Decoder(checkpoint.config, checkpoint.weights, config.context_len, config.device)
    chosen: Drafter | None = NgramDrafter(config.max_gamma) if drafter == "ngram" else None
    if draft is source:
        chosen = ModelDrafter(decoder, config, shape.vocab_size, same_tokenizer=True)
    elif draft is not None:
        chosen = _model_drafter(draft.load(config.torch_dtype, progress), checkpoint, config)
    return LLMEngine(decoder, config, tokenizer=checkpoint.tokenizer, drafter=chosen, synthetic=synthetic)


def _check_drafter(drafter: str | None, draft_model: str | Path | None) -> None:
    if drafter is not None and drafter not in DRAFTERS:
        raise ValueError(f"drafter={drafter!r} is unknown: choose one of {', '.join(DRAFTERS)}, or none")
    if (drafter == "model") != (draft_model is not None):
        raise ValueError(f"drafter={drafter!r} and draft_model={draft_model!r}: drafter='model' takes a draft_model")


def _draft_source(draft_model: str | Path | None, target: ModelSource) -> ModelSource | None:
    """The target's own source where it drafts for itself, so that its weights are loaded once."""
    if draft_model is None:
        return None
    return target if str(draft_model) == target.name else open_model(draft_model)


def _model_drafter(draft: Checkpoint, target: Checkpoint, config: EngineConfig) -> ModelDrafter:
    same_vocabulary(target, draft)
    decoder = Decoder(draft.config, draft.weights, min(config.context_len, draft.config.context_len), config.device)
    return ModelDrafter(decoder, config, target.config.vocab_size, same_tokenizer=True)
