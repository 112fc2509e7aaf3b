"""The Llama-family decoder: rotary positions, grouped-query attention, RMSNorm, SwiGLU, tied or untied head.

Qwen2 (projection biases), Qwen3 (normed queries and keys) and Mistral (sliding window) are settings of the same
forward pass. Shapes: N packed tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.attention import Attention
from engine.models.block import make_layer, rms_norm, rotary_tables
from engine.models.config import ModelConfig
from engine.models.linear import make_linear

Tap = Callable[[int, Tensor], None]
"""Shown the residual stream `[N, E]` before each layer, by the layer's number, and after the last one."""


class Decoder:
    """Weights on one device, and the forward pass over packed tokens."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], context_len: int, device: str) -> None:
        """`weights` under Hugging Face names, in the dtype to run in; `context_len` sizes the rotary tables."""
        self.config = config
        self.embedding_VE = weights["model.embed_tokens.weight"].to(device)
        self.dtype = self.embedding_VE.dtype
        self.cos, self.sin = rotary_tables(config, context_len, self.dtype, device)
        layers = range(config.num_layers)
        self.layers = [make_layer(config, weights, f"model.layers.{index}.", device) for index in layers]
        self.final_norm = weights["model.norm.weight"].to(device)
        head = self.embedding_VE if config.tie_embeddings else weights["lm_head.weight"].to(device)
        self.head = make_linear(head)

    def check(self, dtype: torch.dtype, context_len: int) -> None:
        """ValueError unless this decoder was built for `dtype` and at least `context_len` tokens."""
        if self.dtype != dtype:
            raise ValueError(
                f"the engine's dtype is {dtype} and the decoder's weights are {self.dtype}: use one of them"
            )
        if self.cos.shape[0] < context_len:
            raise ValueError(
                f"context_len={context_len} is above the {self.cos.shape[0]} tokens the decoder was built for"
            )

    def forward(self, tokens_N: Tensor, positions_N: Tensor, attend: Attention, tap: Tap | None = None) -> Tensor:
        """Final-normed hidden states `[N, E]`; `attend` holds the step's layout and writes the cache."""
        cos, sin = self.cos.index_select(0, positions_N), self.sin.index_select(0, positions_N)
        x_NE = self.embedding_VE.index_select(0, tokens_N)
        for index, layer in enumerate(self.layers):
            if tap is not None:
                tap(index, x_NE)
            assert layer.input_norm is not None, "every block of a decoder has one"
            x_NE = x_NE + layer.attention(index, self._norm(x_NE, layer.input_norm), cos, sin, attend)
            x_NE = x_NE + layer.mlp(x_NE)
        if tap is not None:
            tap(len(self.layers), x_NE)
        return self._norm(x_NE, self.final_norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.norm_eps)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        """`[N, V]` in the model's dtype."""
        logits: Tensor = self.head(hidden_NE)
        return logits
