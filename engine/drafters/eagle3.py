"""EAGLE-3 (Li et al. 2025): one block over features of three depths, trained on what it drafts itself.

The feature is a projection of the target's residual stream at a low, a middle and a high layer. The block's attention
reads the normed embedding beside the normed feature; the residual stream is the feature's. What comes out, not normed,
is the next feature. Shapes: N tokens, E hidden size, D draft vocabulary.
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
from engine.models.block import Layer, make_layer, rms_norm
from engine.models.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class Eagle3Module:
    """`layer.input_norm` is the embedding's."""

    layer: Layer
    hidden_norm: Tensor
    final_norm: Tensor
    head: Linear

    def run(
        self, index: int, embedding_NE: Tensor, feature_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, attend: Attention
    ) -> Tensor:
        assert self.layer.input_norm is not None
        eps = self.layer.config.norm_eps
        normed = [rms_norm(embedding_NE, self.layer.input_norm, eps), rms_norm(feature_NE, self.hidden_norm, eps)]
        x_NE = feature_NE + self.layer.attention(index, torch.cat(normed, -1), cos_N1D, sin_N1D, attend)
        return x_NE + self.layer.mlp(x_NE)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        logits_ND: Tensor = self.head(rms_norm(hidden_NE, self.final_norm, self.layer.config.norm_eps))
        return logits_ND


def eagle3_drafter(
    source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig
) -> HeadDrafter:
    """The drafter that `weights`, named as in the published files, make."""
    vocabulary = DraftVocabulary.make(weights, target, source.name)
    module = Eagle3Module(
        layer=make_layer(source.block, weights, "midlayer.", config.device),
        hidden_norm=weights["midlayer.hidden_norm.weight"].to(config.device),
        final_norm=weights["norm.weight"].to(config.device),
        head=vocabulary.head(),
    )
    layers = source.aux_layers(target.decoder.config.num_layers)
    project = make_linear(weights["fc.weight"].to(config.device))
    features = Features.allocate(config, source.hidden_size, target.decoder.dtype, layers, project)
    return HeadDrafter("eagle3", "eagle", [module], source.block, vocabulary, features, config)
