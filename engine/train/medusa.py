"""Medusa: one residual head per position, all from the same feature (Cai et al. 2024).

Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.config import ModelConfig
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson


class ResidualBlock(nn.Module):
    """x + silu(Wx + b), at first x itself."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(TrainableDrafter):
    """Head k guesses the k-th token after the one that the feature itself predicts. The target's own head is shared."""

    method = "medusa"

    def __init__(self, config: ModelConfig, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.depth = heads
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden_size) for _ in range(layers))) for _ in range(heads)
        )
        self.layers = layers

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        return [head(lesson.features.hidden_BTE) for head in self.heads[:depth]]

    def tensors(self) -> dict[str, Tensor]:
        return {name.removeprefix("heads."): tensor for name, tensor in self.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_state_dict({f"heads.{name}": tensor for name, tensor in tensors.items()})

    def settings(self) -> dict[str, Any]:
        return {
            "architectures": ["MedusaModel"],
            "medusa_num_heads": self.depth,
            "medusa_num_layers": self.layers,
        }
