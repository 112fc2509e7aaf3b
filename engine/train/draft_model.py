"""A small draft model: a few Llama blocks between the target's own embedding and head, distilled (Zhou et al. 2023).

Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.train.blocks import Block, Norm, Past
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson

PREFIX = "model."


class DraftModel(TrainableDrafter):
    """It sees tokens only, and begins as some of the target's own layers."""

    method = "draft"

    def __init__(self, config: ModelConfig, length: int, layers: int = 2) -> None:
        super().__init__()
        if config.qkv_bias or config.qk_norm or config.out_bias:
            raise ValueError(
                "a draft model is made of plain Llama layers, and the target's have biases or normed heads"
            )
        self.layers = nn.ModuleList(Block(config, length) for _ in range(layers))
        self.norm = Norm(config.hidden_size, config.norm_eps)

    @torch.no_grad()
    def copy_layers(self, weights: Mapping[str, Tensor], chosen: Sequence[int]) -> None:
        """Begin as the target's layers `chosen`, one for each of its own; `weights` under Hugging Face names."""
        state = {"norm.weight": weights["model.norm.weight"]}
        for place, index in enumerate(chosen):
            source = f"model.layers.{index}."
            state |= {
                f"layers.{place}.{name.removeprefix(source)}": tensor
                for name, tensor in weights.items()
                if name.startswith(source)
            }
        self.load_state_dict(state)

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        x_BTE = lesson.embedded_BTE
        for layer in self.layers:
            x_BTE = layer(x_BTE, Past())
        out_BTE = self.norm(x_BTE)
        # Step s of chain t has read all tokens up to t + 1 + s, and nothing else.
        return [out_BTE.roll(-1 - step, 1) for step in range(depth)]

    def tensors(self) -> dict[str, Tensor]:
        return {PREFIX + name: tensor for name, tensor in self.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})

    def settings(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": len(self.layers),
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "target_embeddings": True,
        }
