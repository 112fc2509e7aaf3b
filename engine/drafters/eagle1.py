"""EAGLE-1 (Li et al. 2024): one block that goes on with the target's own features.

A linear layer joins the embedding and the target's final-normed hidden state; the block that follows has no norm before
its attention. What comes out stands for the next final-normed hidden state, and the target's head reads it.
Shapes: N tokens, E hidden size, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import Attention
from engine.config import EngineConfig
from engine.drafters.head_format import HeadFormat
from engine.drafters.heads import HeadDrafter
from engine.drafters.vocabulary import DraftVocabulary, Target
from engine.features import Features
from engine.models.block import Layer, make_layer
from engine.models.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class Eagle1Module:
    """`join` takes the embedding and the feature side by side."""

    join: Linear
    layer: Layer
    head: Linear

    def run(
        self, index: int, embedding_NE: Tensor, feature_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, attend: Attention
    ) -> Tensor:
        x_NE: Tensor = self.join(torch.cat([embedding_NE, feature_NE], -1))
        x_NE = x_NE + self.layer.attention(index, x_NE, cos_N1D, sin_N1D, attend)
        return x_NE + self.layer.mlp(x_NE)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        logits_ND: Tensor = self.head(hidden_NE)
        return logits_ND


def eagle1_drafter(
    source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig
) -> HeadDrafter:
    """The drafter that `weights`, named as in the published files, make."""
    vocabulary = DraftVocabulary.make(weights, target, source.name)
    bias = weights.get("fc.bias")
    module = Eagle1Module(
        join=make_linear(weights["fc.weight"].to(config.device), None if bias is None else bias.to(config.device)),
        layer=make_layer(source.block, weights, "layers.0.", config.device),
        head=vocabulary.head(),
    )
    features = Features.allocate(config, source.hidden_size, target.decoder.dtype)
    return HeadDrafter("eagle1", "eagle", [module], source.block, vocabulary, features, config)
