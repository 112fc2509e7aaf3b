"""EAGLE-3: one block over the target's low, middle and high features and the next token (Li et al. 2025).

Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.train.blocks import Attention, Mlp, Norm, Past
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson
from engine.train.scaled import ScaledLinear
from engine.train.teacher import Features

FUSION = "fc.weight"


def tapped_layers(num_layers: int) -> tuple[int, int, int]:
    """Low, middle, high: the layers before which the residual stream is read.

    The first is never 1, by which some readers recognise lists that count a layer's output as its own.
    """
    return (2 if num_layers > 2 else 0, num_layers // 2, max(num_layers - 3, 0))


class MidLayer(nn.Module):
    """A block whose attention reads the embedding beside the feature; the feature alone is its residual stream."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.input_layernorm = Norm(size, config.norm_eps)
        self.hidden_norm = Norm(size, config.norm_eps)
        self.self_attn = Attention(config, 2 * size, length)
        self.post_attention_layernorm = Norm(size, config.norm_eps)
        self.mlp = Mlp(size, config.intermediate_size)

    def forward(self, embedded_BTE: Tensor, hidden_BTE: Tensor, past: Past) -> Tensor:
        normed = torch.cat([self.input_layernorm(embedded_BTE), self.hidden_norm(hidden_BTE)], -1)
        hidden_BTE = hidden_BTE + self.self_attn(normed, past)
        out: Tensor = hidden_BTE + self.mlp(self.post_attention_layernorm(hidden_BTE))
        return out


class Eagle3(TrainableDrafter):
    """Trained on its own features from the second step on: training-time test."""

    method = "eagle3"

    def __init__(self, config: ModelConfig, length: int, depth: int = 5) -> None:
        """`length` is the longest sequence, `depth` the steps it is unrolled through."""
        super().__init__()
        self.depth = depth
        self.taps = tapped_layers(config.num_layers)
        self.fc = ScaledLinear(3 * config.hidden_size, config.hidden_size)
        self.midlayer = MidLayer(config, length)
        self.norm = Norm(config.hidden_size, config.norm_eps)

    def begin(self, features: Features) -> None:
        self.fc.fit(self._tapped(features))

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        hidden_BTE = self.fc(self._tapped(lesson.features))
        past, outputs = Past(), []
        for step in range(depth):
            hidden_BTE = self.midlayer(lesson.embedded(1 + step), hidden_BTE, past)
            outputs.append(self.norm(hidden_BTE))
        return outputs

    def _tapped(self, features: Features) -> Tensor:
        return torch.cat([features.taps[layer] for layer in self.taps], -1)

    def tensors(self) -> dict[str, Tensor]:
        state = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("fc.")}
        return state | {FUSION: self.fc.folded()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_state_dict(dict(tensors) | {FUSION: self.fc.weight, "fc.per_input": self.fc.per_input})
        self.fc.unfold(tensors[FUSION])

    def settings(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.taps)},
        }
