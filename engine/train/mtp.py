"""Multi-token prediction as DeepSeek-V3 does it: normed embedding and normed feature, a projection, one block.

Source: DeepSeek-AI 2024, DeepSeek-V3, section 2.2. One module is chained for several positions.
Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.train.blocks import Block, Norm, Past
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson


class SharedHead(nn.Module):
    """The norm before the target's head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = Norm(config.hidden_size, config.norm_eps)


class MtpLayer(Block):
    """The block with what comes before and after it."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__(config, length)
        size = config.hidden_size
        self.enorm = Norm(size, config.norm_eps)
        self.hnorm = Norm(size, config.norm_eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.shared_head = SharedHead(config)

    def join(self, embedded_BTE: Tensor, hidden_BTE: Tensor) -> Tensor:
        joined: Tensor = self.eh_proj(torch.cat([self.enorm(embedded_BTE), self.hnorm(hidden_BTE)], -1))
        return joined

    def head_input(self, hidden_BTE: Tensor) -> Tensor:
        normed: Tensor = self.shared_head.norm(hidden_BTE)
        return normed


class Mtp(TrainableDrafter):
    """The block's output, before the head's norm, is the next step's feature."""

    method = "mtp"

    def __init__(self, config: ModelConfig, length: int, depth: int = 4) -> None:
        super().__init__()
        self.depth = depth
        self.layers = nn.ModuleList([MtpLayer(config, length)])

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        layer = self.layers[0]
        assert isinstance(layer, MtpLayer)
        hidden_BTE, past, outputs = lesson.features.hidden_BTE, Past(), []
        for step in range(depth):
            hidden_BTE = layer(layer.join(lesson.embedded(1 + step), hidden_BTE), past)
            outputs.append(layer.head_input(hidden_BTE))
        return outputs

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.state_dict())

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_state_dict(dict(tensors))

    def settings(self) -> dict[str, Any]:
        return {"architectures": ["DeepSeekMTPModel"], "num_nextn_predict_layers": len(self.layers)}
