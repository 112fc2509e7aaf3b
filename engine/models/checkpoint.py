"""A model in memory, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights under Hugging Face names (`model.layers.0.self_attn.q_proj.weight`), all of one dtype, on the CPU.

    Projections are `[out, in]`, as `torch.nn.functional.linear` takes them. `lm_head.weight` is there only when the
    output head is not tied to `model.embed_tokens.weight`. Query and key rows are in Hugging Face order: rotary
    embedding pairs dimension i with i + head_dim / 2. `name` is what the user called the model, for messages.
    """

    config: ModelConfig
    weights: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    name: str = "model"
