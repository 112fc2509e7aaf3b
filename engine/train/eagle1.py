"""EAGLE-1: the next feature from this feature and the next token (Li et al. 2024).

Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.config import ModelConfig
from engine.train.blocks import Block, Past
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson

GUESS_WEIGHT = 0.1  # of the cross-entropy beside the features' distance, as in the paper
NOISE = 0.1  # features are blurred by up to this share of their spread, so that own errors do not surprise


class Eagle1(TrainableDrafter):
    """Its output stands for the target's final-normed feature and goes through the target's head as it is."""

    method = "eagle1"
    guess_weight = GUESS_WEIGHT

    def __init__(self, config: ModelConfig, length: int, depth: int = 1) -> None:
        super().__init__()
        self.depth = depth
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Block(config, length, input_norm=False)])

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        hidden_BTE = lesson.features.hidden_BTE
        if self.training:
            hidden_BTE = hidden_BTE + NOISE * hidden_BTE.std() * (2 * torch.rand_like(hidden_BTE) - 1)
        past, outputs = Past(), []
        for step in range(depth):
            joined = torch.cat([lesson.embedded(1 + step), hidden_BTE.to(lesson.embedded_BTE.dtype)], -1)
            hidden_BTE = self.layers[0](self.fc(joined), past)
            outputs.append(hidden_BTE)
        return outputs

    def extra_loss(self, lesson: Lesson, outputs: list[Tensor]) -> Tensor:
        """Smooth-L1 distance between the guessed features and the true ones."""
        true_RE = lesson.features.hidden_BTE.flatten(0, 1).index_select(0, lesson.rows_R).float()
        distances = [F.smooth_l1_loss(lesson.at(out, step).float(), true_RE) for step, out in enumerate(outputs)]
        return torch.stack(distances).mean()

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.state_dict())

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_state_dict(dict(tensors))

    def settings(self) -> dict[str, Any]:
        return {"architectures": ["EagleForCausalLM"], "num_hidden_layers": 1}
