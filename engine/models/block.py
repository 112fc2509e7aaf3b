"""One block of a Llama-family decoder: attention with rotary positions and SwiGLU. What goes in is normed by callers.

Shapes: N packed tokens, E hidden size, I what the projections of attention take (E, or 2 E in an EAGLE-3 head), H query
heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention import Attention
from engine.models.config import ModelConfig
from engine.models.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights. Projections that share an input are fused into one product. `input_norm` may be lacking."""

    config: ModelConfig
    input_norm: Tensor | None
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    def attention(self, index: int, x_NI: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, attend: Attention) -> Tensor:
        """What attention adds to the residual stream `[N, E]`; `index` is the layer's place in the cache."""
        heads, kv_heads, eps = self.config.num_heads, self.config.num_kv_heads, self.config.norm_eps
        qkv = self.qkv(x_NI).view(x_NI.shape[0], heads + 2 * kv_heads, self.config.head_dim)
        if self.q_norm is None or self.k_norm is None:
            q, k = rotate(qkv[:, : heads + kv_heads], cos_N1D, sin_N1D).split([heads, kv_heads], 1)
        else:
            q = rotate(rms_norm(qkv[:, :heads], self.q_norm, eps), cos_N1D, sin_N1D)
            k = rotate(rms_norm(qkv[:, heads : heads + kv_heads], self.k_norm, eps), cos_N1D, sin_N1D)
        out_NE: Tensor = self.out(attend(index, q, k, qkv[:, heads + kv_heads :]))
        return out_NE

    def mlp(self, x_NE: Tensor) -> Tensor:
        """What the MLP adds to the residual stream `[N, E]`, its norm included."""
        gate, up = self.gate_up(rms_norm(x_NE, self.mlp_norm, self.config.norm_eps)).chunk(2, -1)
        out_NE: Tensor = self.down(F.silu(gate) * up)
        return out_NE


def make_layer(config: ModelConfig, weights: Mapping[str, Tensor], prefix: str, device: str) -> Layer:
    """The block whose tensors' names start with `prefix`, under Hugging Face's names."""

    def tensor(name: str) -> Tensor | None:
        found = weights.get(prefix + name)
        return None if found is None else found.to(device)

    def fused(*names: str) -> Linear:
        weight = torch.cat([weights[f"{prefix}{name}.weight"] for name in names]).to(device)
        biases = [weights[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in weights]
        return make_linear(weight, torch.cat(biases).to(device) if biases else None)

    return Layer(
        config=config,
        input_norm=tensor("input_layernorm.weight"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=tensor("self_attn.q_norm.weight"),
        k_norm=tensor("self_attn.k_norm.weight"),
        out=fused("self_attn.o_proj"),
        mlp_norm=weights[prefix + "post_attention_layernorm.weight"].to(device),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


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
