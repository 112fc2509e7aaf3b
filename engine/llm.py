"""From a model's name to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.drafters.formats import KINDS, open_heads, shares_embeddings
from engine.drafters.head_format import HeadFormat
from engine.drafters.ngram import index_bytes
from engine.drafters.trained import make_trained
from engine.drafters.vocabulary import Target
from engine.memory import require_memory
from engine.models.checkpoint import Checkpoint
from engine.models.decoder import Decoder
from engine.models.source import ModelSource, open_model
from engine.models.vocabulary import same_vocabulary

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

DEFAULT_CONTEXT = 2048
DRAFTERS = ("ngram", "model", *KINDS)

Progress = Callable[[int, int], None]


def load_engine(
    model: str | Path = "smollm2-135m",
    *,
    revision: str | None = None,
    drafter: str | None = "ngram",
    draft_model: str | Path | None = None,
    span_outputs: bool = False,
    max_batch: int = 8,
    context_len: int | None = None,
    max_gamma: int = 16,
    max_tree_nodes: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str | None = None,
    threads: int | None = None,
    prefix_reuse: bool = True,
    synthetic: SyntheticAcceptance | None = None,
    progress: Progress | None = None,
) -> LLMEngine:
    """Load a model and build an engine around it.

    `model` is a name that `adaptive models list` knows, a GGUF file, a Hugging Face folder, or the id of a model on the
    Hugging Face hub (`organisation/model`), of which `revision` chooses a branch, tag or commit.

    `drafter` is `ngram`, `model`, a trained kind (`eagle1`, `eagle3`, `medusa`, `mtp`) or None. `model` drafts with
    `draft_model`, named like `model`, of the same tokenizer, or the folder of a small one that shares the model's
    embedding; a trained kind with the folder `draft_model`, which was trained for this model. `span_outputs` lets
    `ngram` copy from the outputs of ended requests too (how fast an answer comes may show that).

    `context_len` is the tokens a row can hold, 2048 or the model's own limit where that is less. `backend` is `eager`
    on a CPU and `cuda` (CUDA graphs) on a GPU unless given. `max_tree_nodes` lets policies draft trees of so many
    tokens per request, with `ngram` or `model`. `threads` sets torch's CPU threads. `prefix_reuse` spares what a prompt
    shares with earlier ones; leave it off to time prompts. `synthetic` asks for an acceptance rate instead of finding
    it out: outputs are then meaningless. `progress` is called with (bytes loaded, bytes in all), per model. Raises
    ValueError for bad settings and files, FetchError when the hub gives no model, MemoryError before allocating what
    does not fit.
    """
    _check_drafter(drafter, draft_model, span_outputs)
    source = open_model(model, revision)
    config = EngineConfig(
        max_batch=max_batch,
        context_len=_context_len(context_len, source.config.context_len),
        max_gamma=max_gamma,
        max_tree_nodes=max_tree_nodes,
        dtype=dtype,
        device=device,
        backend=backend or ("cuda" if device.startswith("cuda") else "eager"),
        prefix_reuse=prefix_reuse,
    )
    draft = _open_draft(drafter, draft_model, source)
    index = index_bytes(config, span_outputs=span_outputs) if drafter == "ngram" else 0
    _check_before_loading(source, draft, config, _max_gamma(drafter, draft, config), synthetic, index)
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = source.load(config.torch_dtype, progress)
    decoder = Decoder(checkpoint.config, checkpoint.weights, config.context_len, config.device)
    copier = NgramDrafter(config, span_outputs=span_outputs) if drafter == "ngram" else None
    chosen = copier or _make_drafter(draft, source, checkpoint, decoder, config, progress)
    return LLMEngine(decoder, config, tokenizer=checkpoint.tokenizer, drafter=chosen, synthetic=synthetic)


def _context_len(wanted: int | None, limit: int) -> int:
    """Tokens per row; `limit` is the model's own."""
    if wanted is not None and wanted > limit:
        raise ValueError(f"context_len={wanted} is above the model's own limit of {limit} tokens")
    return min(DEFAULT_CONTEXT, limit) if wanted is None else wanted


def _check_drafter(drafter: str | None, draft_model: str | Path | None, span_outputs: bool) -> None:
    if drafter is not None and drafter not in DRAFTERS:
        raise ValueError(f"drafter={drafter!r} is unknown: choose one of {', '.join(DRAFTERS)}, or none")
    if (drafter is not None and drafter != "ngram") != (draft_model is not None):
        raise ValueError(
            f"drafter={drafter!r} and draft_model={draft_model!r}: drafter='model' takes a draft_model, and so do "
            f"{', '.join(KINDS)}; the others take none"
        )
    if span_outputs and drafter != "ngram":
        raise ValueError(f"drafter={drafter!r} and span_outputs=True: only drafter='ngram' copies earlier outputs")


def _open_draft(
    drafter: str | None, draft_model: str | Path | None, target: ModelSource
) -> ModelSource | HeadFormat | None:
    """What drafts, its weights still in their files. ValueError when it is of another kind or for another model.

    The target's own source where it drafts for itself, so that its weights are loaded once.
    """
    if draft_model is None:
        return None
    if drafter == "model" and not shares_embeddings(draft_model):
        return target if str(draft_model) == target.name else open_model(draft_model)
    heads = open_heads(draft_model)
    name = "model" if heads.kind == "draft" else heads.kind
    if name != drafter:
        raise ValueError(f"{heads.name} holds a drafter of kind {name!r}: load it with drafter={name!r}")
    heads.check(target.config)
    return heads


def _check_before_loading(
    source: ModelSource,
    draft: ModelSource | HeadFormat | None,
    config: EngineConfig,
    max_gamma: int,
    synthetic: SyntheticAcceptance | None,
    index: int,
) -> None:
    """What would fail after minutes of loading; `index` is what an n-gram index takes."""
    if synthetic is not None:
        synthetic.conditional(max_gamma)
    shape = draft.config if isinstance(draft, ModelSource) else draft
    require_memory(source.config, config, max_gamma, shape, index)


def _max_gamma(drafter: str | None, draft: ModelSource | HeadFormat | None, config: EngineConfig) -> int:
    if drafter is None:
        return 0
    return draft.max_gamma(config.max_gamma) if isinstance(draft, HeadFormat) else config.max_gamma


def _make_drafter(
    draft: ModelSource | HeadFormat | None,
    source: ModelSource,
    target: Checkpoint,
    decoder: Decoder,
    config: EngineConfig,
    progress: Progress | None,
) -> Drafter | None:
    """The drafter that files describe; `source` is the target's."""
    if draft is None:
        return None
    if draft is source:
        return ModelDrafter(decoder, config, target.config.vocab_size, same_tokenizer=True)
    if isinstance(draft, HeadFormat):
        weights = draft.load(config.torch_dtype, progress)
        return make_trained(draft, weights, Target.of(decoder, target.weights), config)
    return _model_drafter(draft.load(config.torch_dtype, progress), target, config)


def _model_drafter(draft: Checkpoint, target: Checkpoint, config: EngineConfig) -> ModelDrafter:
    same_vocabulary(target, draft)
    decoder = Decoder(draft.config, draft.weights, min(config.context_len, draft.config.context_len), config.device)
    return ModelDrafter(decoder, config, target.config.vocab_size, same_tokenizer=True)
