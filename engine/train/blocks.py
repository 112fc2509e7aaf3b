"""Trainable parts of a Llama block, recomputed over whole sequences, and attention through unrolled draft steps.

Shapes: B sequences, T tokens, E hidden size, H query heads, K key/value heads, G = H / K, D head size, I input size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.block import rotary_tables
from engine.models.config import ModelConfig

LONGEST_CHAIN = 16  # steps a chain can be unrolled past the longest sequence


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


@dataclass
class Past:
    """Keys and values of the draft steps so far, `[B, K, T, D]` each; the first ones come from true features."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, inputs: int, length: int) -> None:
        """Reads `inputs` numbers a token, writes `hidden_size`; `length` is the longest sequence."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.q_proj = nn.Linear(inputs, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        cos, sin = rotary_tables(config, length + LONGEST_CHAIN, torch.float32, "cpu")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x_BTI: Tensor, past: Past) -> Tensor:
        """Step number `len(past.keys)` of every position's chain: its tokens stand that much further on."""
        B, T, _ = x_BTI.shape
        step = len(past.keys)
        q, k, v = self._heads(self.q_proj, x_BTI), self._heads(self.k_proj, x_BTI), self._heads(self.v_proj, x_BTI)
        cos, sin = self.cos[step : step + T].to(q.dtype), self.sin[step : step + T].to(q.dtype)
        past.keys.append(rotate(k, cos, sin).transpose(1, 2))
        past.values.append(v.transpose(1, 2))
        out_BHTD = attend_chains(rotate(q, cos, sin).transpose(1, 2), past)
        out: Tensor = self.o_proj(out_BHTD.transpose(1, 2).reshape(B, T, -1))
        return out

    def _heads(self, projection: nn.Linear, x_BTI: Tensor) -> Tensor:
        out: Tensor = projection(x_BTI)
        return out.view(*x_BTI.shape[:2], -1, self.head_dim)


def attend_chains(q_BHTD: Tensor, past: Past) -> Tensor:
    """What chain t sees: true features up to t, then only its own earlier draft steps (EAGLE-3's training-time test).

    Source: Li et al. 2025, EAGLE-3, section 3.2. With one step this is causal attention.
    """
    if len(past.keys) == 1:
        (k, v) = past.keys[0], past.values[0]
        return F.scaled_dot_product_attention(q_BHTD, k, v, is_causal=True, enable_gqa=True)
    B, H, T, D = q_BHTD.shape
    K = past.keys[0].shape[1]
    q = q_BHTD.view(B, K, H // K, T, D) * D**-0.5
    seen = (q.flatten(2, 3) @ past.keys[0].transpose(-1, -2)).view(B, K, H // K, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    own = [(q * key.unsqueeze(2)).sum(-1, keepdim=True) for key in past.keys[1:]]
    scores = torch.cat([seen.masked_fill(future, float("-inf")), *own], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    out = (weights[..., :T].flatten(2, 3) @ past.values[0]).view(B, K, H // K, T, D)
    for place, value in enumerate(past.values[1:]):
        out = out + weights[..., T + place].unsqueeze(-1) * value.unsqueeze(2)
    return out.view(B, H, T, D)


def rotate(x_BTHD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout; the table's sine has its first half negated."""
    return x_BTHD * cos_T1D + x_BTHD.roll(x_BTHD.shape[-1] // 2, -1) * sin_T1D


class Block(nn.Module):
    """A Llama block; without `input_norm` it reads its input as it is, as EAGLE-1's first layer does."""

    def __init__(self, config: ModelConfig, length: int, *, input_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.norm_eps) if input_norm else None
        self.self_attn = Attention(config, config.hidden_size, length)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, x_BTE: Tensor, past: Past) -> Tensor:
        normed = x_BTE if self.input_layernorm is None else self.input_layernorm(x_BTE)
        x_BTE = x_BTE + self.self_attn(normed, past)
        out: Tensor = x_BTE + self.mlp(self.post_attention_layernorm(x_BTE))
        return out
