"""From a model's name to a running engine, or to several around the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.core import LLMEngine
from engine.drafters.head_format import HeadFormat
from engine.drafters.vocabulary import Target
from engine.memory import require_memory
from engine.models.checkpoint import Checkpoint
from engine.models.decoder import Decoder
from engine.models.vocabulary import same_vocabulary
from engine.plan import DRAFTERS, DraftSource, EnginePlan, plan_engine

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

__all__ = ["DRAFTERS", "load_engine", "load_plans"]

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
    embedding; a trained kind with the folder `draft_model`, which was trained for this model. Left out, it is the
    package's own for this model, where there is one. `span_outputs` lets `ngram` copy from the outputs of ended
    requests too (how fast an answer comes may show that).

    `context_len` is the tokens a row can hold, 2048 or the model's own limit where that is less. `backend` is `eager`
    on a CPU and `cuda` (CUDA graphs) on a GPU unless given. `max_tree_nodes` lets policies draft trees of so many
    tokens per request, with `ngram` or `model`. `threads` sets torch's CPU threads. `prefix_reuse` spares what a prompt
    shares with earlier ones; leave it off to time prompts. `synthetic` asks for an acceptance rate instead of finding
    it out: outputs are then meaningless. `progress` is called with (bytes loaded, bytes in all), per model. Raises
    ValueError for bad settings and files, FetchError when the hub gives no model, MemoryError before allocating what
    does not fit.
    """
    plan = plan_engine(
        model,
        revision=revision,
        drafter=drafter,
        draft_model=draft_model,
        span_outputs=span_outputs,
        max_batch=max_batch,
        context_len=context_len,
        max_gamma=max_gamma,
        max_tree_nodes=max_tree_nodes,
        dtype=dtype,
        device=device,
        backend=backend,
        prefix_reuse=prefix_reuse,
        synthetic=synthetic,
    )
    return load_plans([plan], threads=threads, progress=progress)[0]


def load_plans(
    plans: Sequence[EnginePlan], *, threads: int | None = None, progress: Progress | None = None
) -> list[LLMEngine]:
    """One engine a plan, around the same weights of the target.

    ValueError unless all are for one `ModelSource`, dtype and device; MemoryError before allocating what does not fit.
    """
    first, context_len = plans[0], max(plan.config.context_len for plan in plans)
    for plan in plans:
        if plan.source is not first.source or _placing(plan) != _placing(first):
            raise ValueError("engines that share weights must have one model source, dtype and device")
    require_memory(plans)
    if threads is not None:
        torch.set_num_threads(threads)
    target = first.source.load(first.config.torch_dtype, progress)
    decoder = Decoder(target.config, target.weights, context_len, first.config.device)
    return [_build(plan, target, decoder, progress) for plan in plans]


def _placing(plan: EnginePlan) -> tuple[str, str]:
    return plan.config.dtype, plan.config.device


def _build(plan: EnginePlan, target: Checkpoint, decoder: Decoder, progress: Progress | None) -> LLMEngine:
    def read(draft: DraftSource) -> Mapping[str, Tensor]:
        if isinstance(draft, HeadFormat):
            return draft.load(plan.config.torch_dtype, progress)
        checkpoint = draft.load(plan.config.torch_dtype, progress)
        same_vocabulary(target, checkpoint)
        return checkpoint.weights

    drafter = plan.make_drafter(Target.of(decoder, target.weights), plan.config, read)
    return LLMEngine(decoder, plan.config, tokenizer=target.tokenizer, drafter=drafter, synthetic=plan.synthetic)
