"""The shape of a Llama-family decoder; Qwen2, Qwen3 and Mistral differ from Llama only in these fields."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and variants of one model. Sizes are in elements, `context_len` in tokens.

    `qkv_bias` is Qwen2's bias on the three input projections, `qk_norm` Qwen3's RMSNorm on each query and key head,
    `sliding_window` Mistral's: a token sees itself and the `sliding_window - 1` tokens before it (None = all).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "context_len": self.context_len,
            "rope_theta": self.rope_theta,
            "norm_eps": self.norm_eps,
        }
        for name, value in sizes.items():
            if not value > 0:
                raise ValueError(f"{name}={value!r} is not valid: it must be above 0")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: rotary embedding turns pairs of dimensions")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window={self.sliding_window!r} must be at least 1 token, or None for no window")

    def num_parameters(self) -> int:
        """Weights of the whole model, a tied output head counted once."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * q_size + 2 * kv_size)
        attention += (q_size + 2 * kv_size) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Memory the weights take in `dtype`."""
        return self.num_parameters() * dtype.itemsize
