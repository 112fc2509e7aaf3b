"""Multi-token prediction as in DeepSeek-V3 (2024): sequential modules, each one block that looks one token further.

A module joins the normed embedding and the normed hidden state (of the target, or of the module before) in a linear
layer; a whole block follows. Its output, not normed, is what the next module reads; its own norm and a head, as a rule
the target's, turn it into logits. Shapes: N tokens, E hidden size, D draft vocabulary.
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
class MtpModule:
    """One module. `join` takes the normed embedding and the normed hidden state side by side."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    join: Linear
    layer: Layer
    head_norm: Tensor
    head: Linear

    def run(
        self, index: int, embedding_NE: Tensor, feature_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, attend: Attention
    ) -> Tensor:
        assert self.layer.input_norm is not None
        eps = self.layer.config.norm_eps
        normed = [rms_norm(embedding_NE, self.embedding_norm, eps), rms_norm(feature_NE, self.hidden_norm, eps)]
        x_NE: Tensor = self.join(torch.cat(normed, -1))
        read_NE = rms_norm(x_NE, self.layer.input_norm, eps)
        x_NE = x_NE + self.layer.attention(index, read_NE, cos_N1D, sin_N1D, attend)
        return x_NE + self.layer.mlp(x_NE)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        logits_ND: Tensor = self.head(rms_norm(hidden_NE, self.head_norm, self.layer.config.norm_eps))
        return logits_ND


def mtp_drafter(source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig) -> HeadDrafter:
    """The drafter that `weights`, named as in the published files, make."""
    vocabulary = DraftVocabulary.make(weights, target, source.name)
    own = [weights.get(f"layers.{number}.shared_head.head.weight") for number in range(source.count)]
    shared = vocabulary.head() if any(head is None for head in own) else None

    def module(number: int, own_head: Tensor | None) -> MtpModule:
        prefix = f"layers.{number}."
        head = shared if own_head is None else make_linear(own_head.to(config.device))
        assert head is not None
        return MtpModule(
            embedding_norm=weights[prefix + "enorm.weight"].to(config.device),
            hidden_norm=weights[prefix + "hnorm.weight"].to(config.device),
            join=make_linear(weights[prefix + "eh_proj.weight"].to(config.device)),
            layer=make_layer(source.block, weights, prefix, config.device),
            head_norm=weights[prefix + "shared_head.norm.weight"].to(config.device),
            head=head,
        )

    features = Features.allocate(config, source.hidden_size, target.decoder.dtype)
    modules = [module(number, head) for number, head in enumerate(own)]
    return HeadDrafter("mtp", "mtp", modules, source.block, vocabulary, features, config)
