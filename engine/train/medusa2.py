"""Medusa-2: the heads and the model they sit on are tuned together, the model at a small step size (Cai et al. 2024).

The tuned model is held to what it said before: its whole next-token law is taught by the untuned one.
Shapes: B sequences, T tokens, E hidden size, V vocabulary, R positions learnt from, P a part of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.config import ModelConfig
from engine.train.blocks import Block, Norm, Past
from engine.train.lesson import Lesson, guess_loss
from engine.train.medusa import Medusa

HEADS_WEIGHT = 0.2  # of the heads' loss beside the model's own, as in the paper
BACKBONE_RATE = 0.02  # of the heads' step size
POSITIONS = 256  # of a batch, on which the whole law is compared: the full vocabulary is large


class Backbone(nn.Module):
    """The target's layers, trainable; its embedding and head stay as they are."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], length: int) -> None:
        """`weights` under Hugging Face names. ValueError for a model of other than plain Llama layers."""
        super().__init__()
        if config.qkv_bias or config.qk_norm or config.out_bias:
            raise ValueError("tuning heads and model together needs plain Llama layers, without biases or normed heads")
        self.layers = nn.ModuleList(Block(config, length) for _ in range(config.num_layers))
        self.norm = Norm(config.hidden_size, config.norm_eps)
        names = self.state_dict().keys()
        self.load_state_dict({name: weights[f"model.{name}"] for name in names})

    def forward(self, embedded_BTE: Tensor) -> Tensor:
        """Final-normed hidden states."""
        for layer in self.layers:
            embedded_BTE = layer(embedded_BTE, Past())
        hidden: Tensor = self.norm(embedded_BTE)
        return hidden


class Medusa2(Medusa):
    """Its file holds the heads only; `backbone` is written as a model of its own."""

    guess_weight = HEADS_WEIGHT

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], length: int, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__(config, heads, layers)
        self.backbone = Backbone(config, weights, length)
        self.slow = {"backbone.": BACKBONE_RATE}
        self._head_VE = weights["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
        self._hidden_BTE: Tensor | None = None

    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        hidden_BTE = self.backbone(lesson.embedded_BTE)
        self._hidden_BTE = hidden_BTE
        return [head(hidden_BTE) for head in self.heads[:depth]]

    def extra_loss(self, lesson: Lesson, outputs: list[Tensor]) -> Tensor:
        """Cross-entropy of the tuned model's law against the untuned one's, at some positions spread over the batch."""
        assert self._hidden_BTE is not None, "outputs come first"
        step = max(1, len(lesson.rows_R) // POSITIONS)
        some_P = lesson.rows_R[::step]
        self._head_VE = head_VE = self._head_VE.to(lesson.head_SE)
        before_PE, now_PE = (
            x.flatten(0, 1).index_select(0, some_P) for x in (lesson.features.hidden_BTE, self._hidden_BTE)
        )
        law_PV = F.linear(before_PE.to(head_VE.dtype), head_VE).softmax(-1)
        return guess_loss(F.linear(now_PE.to(head_VE.dtype), head_VE), law_PV)

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super().tensors().items() if not name.startswith("backbone.")}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        kept = {name: tensor for name, tensor in self.state_dict().items() if name.startswith("backbone.")}
        self.load_state_dict({f"heads.{name}": tensor for name, tensor in tensors.items()} | kept)
