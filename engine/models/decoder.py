"""The Llama-family decoder: rotary positions, grouped-query attention, RMSNorm, SwiGLU, tied or untied head.

Qwen2 (projection biases), Qwen3 (normed queries and keys) and Mistral (sliding window) are settings of the same
forward pass. Shapes: N packed tokens, E hidden size, H query heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention import Attention
from engine.models.config import ModelConfig
from engine.models.linear import Linear, make_linear

Tap = Callable[[int, Tensor], None]
"""Shown the residual stream `[N, E]` before each layer, by the layer's number, and after the last one."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Projections that share an input are fused into one product."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def rotary_tables(config: ModelConfig, length: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """cos and sin `[length, 1, D]`, the sine's first half negated so that a rotation is one roll and one addcmul."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling is not None:
        frequencies = config.rope_scaling.stretch(frequencies)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    cos, sin = angles.cos(), angles.sin()
    tables = (torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
    cos_table, sin_table = (table.unsqueeze(1).to(device=device, dtype=dtype) for table in tables)
    return cos_table, sin_table


def rotate(x_NHD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout (Su et al. 2021, as in Hugging Face's Llama)."""
    return torch.addcmul(x_NHD * cos_N1D, x_NHD.roll(x_NHD.shape[-1] // 2, -1), sin_N1D)


class Decoder:
    """Weights on one device, and the forward pass over packed tokens."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], context_len: int, device: str) -> None:
        """`weights` under Hugging Face names, in the dtype to run in; `context_len` sizes the rotary tables."""
        self.config = config
        self.embedding_VE = weights["model.embed_tokens.weight"].to(device)
        self.dtype = self.embedding_VE.dtype
        self.cos, self.sin = rotary_tables(config, context_len, self.dtype, device)
        self.layers = [self._layer(weights, index, device) for index in range(config.num_layers)]
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

    def _layer(self, weights: Mapping[str, Tensor], index: int, device: str) -> Layer:
        prefix = f"model.layers.{index}."

        def tensor(name: str) -> Tensor | None:
            found = weights.get(prefix + name)
            return None if found is None else found.to(device)

        def fused(*names: str) -> Linear:
            weight = torch.cat([weights[f"{prefix}{name}.weight"] for name in names]).to(device)
            biases = [weights[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in weights]
            return make_linear(weight, torch.cat(biases).to(device) if biases else None)

        return Layer(
            input_norm=weights[prefix + "input_layernorm.weight"].to(device),
            qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=tensor("self_attn.q_norm.weight"),
            k_norm=tensor("self_attn.k_norm.weight"),
            out=fused("self_attn.o_proj"),
            mlp_norm=weights[prefix + "post_attention_layernorm.weight"].to(device),
            gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
            down=fused("mlp.down_proj"),
        )

    def forward(self, tokens_N: Tensor, positions_N: Tensor, attend: Attention, tap: Tap | None = None) -> Tensor:
        """Final-normed hidden states `[N, E]`; `attend` holds the step's layout and writes the cache."""
        cos, sin = self.cos.index_select(0, positions_N), self.sin.index_select(0, positions_N)
        x_NE = self.embedding_VE.index_select(0, tokens_N)
        for index, layer in enumerate(self.layers):
            if tap is not None:
                tap(index, x_NE)
            x_NE = x_NE + layer.out(self._attention(index, layer, self._norm(x_NE, layer.input_norm), cos, sin, attend))
            gate, up = layer.gate_up(self._norm(x_NE, layer.mlp_norm)).chunk(2, -1)
            x_NE = x_NE + layer.down(F.silu(gate) * up)
        if tap is not None:
            tap(len(self.layers), x_NE)
        return self._norm(x_NE, self.final_norm)

    def _attention(self, index: int, layer: Layer, x_NE: Tensor, cos: Tensor, sin: Tensor, attend: Attention) -> Tensor:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv(x_NE).view(x_NE.shape[0], heads + 2 * kv_heads, self.config.head_dim)
        if layer.q_norm is None or layer.k_norm is None:
            q, k = rotate(qkv[:, : heads + kv_heads], cos, sin).split([heads, kv_heads], 1)
        else:
            q = rotate(self._norm(qkv[:, :heads], layer.q_norm), cos, sin)
            k = rotate(self._norm(qkv[:, heads : heads + kv_heads], layer.k_norm), cos, sin)
        return attend(index, q, k, qkv[:, heads + kv_heads :])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        """`[N, V]` in the model's dtype."""
        logits: Tensor = self.head(hidden_NE)
        return logits
