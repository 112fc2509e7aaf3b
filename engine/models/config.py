"""The shape of a Llama-family decoder; Qwen2, Qwen3 and Mistral differ from Llama only in these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's longer context: slow rotations get `factor` times slower, fast ones stay, those between get part.

    A frequency is slow when it turns less than `low_freq_factor` times within `original_context_len` tokens, fast when
    it turns more than `high_freq_factor` times. Source: the `llama3` type of Hugging Face's rotary parameters.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ValueError(f"rope scaling factor={self.factor!r} is not valid: it must be at least 1")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope scaling low_freq_factor={self.low_freq_factor!r} and high_freq_factor={self.high_freq_factor!r} "
                "are not valid: they must satisfy 0 < low < high"
            )
        if not self.original_context_len > 0:
            raise ValueError(f"rope scaling original_context_len={self.original_context_len!r} must be above 0")

    def stretch(self, frequencies: Tensor) -> Tensor:
        """Angular frequencies, in radians per token, as the scaled model uses them."""
        turns = frequencies * self.original_context_len / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and variants of one model. Sizes are in elements, `context_len` in tokens.

    `qkv_bias` is Qwen2's bias on the three input projections, `out_bias` one on attention's output projection,
    `qk_norm` Qwen3's RMSNorm on each query and key head, `sliding_window` Mistral's: a token sees itself and the
    `sliding_window - 1` tokens before it (None = all). `rope_scaling` is Llama 3.1's (None = unscaled positions).
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
    rope_scaling: RopeScaling | None = None
    out_bias: bool = False

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
        attention += self.hidden_size * self.out_bias
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Memory the weights take in `dtype`."""
        return self.num_parameters() * dtype.itemsize
