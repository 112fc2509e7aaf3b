"""An engine of tensors without memory, to know what the real one will take before anything is allocated.

It is built by the same code from the same shapes, so that no list of buffers has to be kept up to date beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from adaptive.contract import Capabilities
from engine.core import LLMEngine
from engine.drafters.head_format import HeadFormat
from engine.drafters.vocabulary import Target
from engine.identity import identify
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.huggingface import tensor_shapes
from engine.models.linear import prepacked
from engine.plan import DraftSource, EnginePlan

NOWHERE = "meta"


def sketch(plan: EnginePlan) -> LLMEngine:
    """An engine that could serve nothing, its tensors of the shapes and dtypes that the plan's will have."""
    config = replace(plan.config, device=NOWHERE, backend="eager")
    packed, dtype = prepacked(plan.config.device, config.torch_dtype), config.torch_dtype
    shape = _copied_head(plan.source.config, packed)
    weights = _weights(shape, dtype)
    decoder = Decoder(shape, weights, config.context_len, NOWHERE)

    def read(draft: DraftSource) -> Mapping[str, Tensor]:
        if isinstance(draft, HeadFormat):
            return _heads(draft, dtype, packed)
        return _weights(_copied_head(draft.config, packed), dtype)

    return LLMEngine(decoder, config, drafter=plan.make_drafter(Target.of(decoder, weights), config, read))


def capabilities(plan: EnginePlan) -> Capabilities:
    """What the plan's engine will be able to do. (Only widths may differ, where pieces are recorded.)"""
    found = sketch(plan)
    return replace(found.capabilities(), identity=identify(plan.source.config, plan.config, found.drafter))


def _copied_head(shape: ModelConfig, packed: bool) -> ModelConfig:
    """A tied head that gets packed is a copy of the embedding, so that both are there."""
    return replace(shape, tie_embeddings=shape.tie_embeddings and not packed)


def _weights(shape: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.empty(size, dtype=dtype, device=NOWHERE) for name, size in tensor_shapes(shape).items()}


def _heads(heads: HeadFormat, dtype: torch.dtype, packed: bool) -> dict[str, Tensor]:
    """A table is read after all: it is small, and its numbers decide the shape of others."""
    weights = {
        name: one.read(dtype) if one.is_table else torch.empty(one.shape, dtype=dtype, device=NOWHERE)
        for name, one in heads.tensors.items()
    }
    if packed and heads.kind == "draft" and not {"d2t", "lm_head.weight"} & weights.keys():
        # a small model packs its target's whole head once more
        weights["lm_head.weight"] = torch.empty(heads.vocab_size, heads.hidden_size, dtype=dtype, device=NOWHERE)
    return weights
