"""Floors of a verify forward: bytes it must read and arithmetic it must do, at the rates that this machine reaches.

A rate is measured, not looked up: the fastest of a few large torch operations, in the same rounds as the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from engine.models.config import ModelConfig
from engine.models.linear import make_product

MIB = 1 << 20
COLUMNS = 2048  # of the matrix that a vector is multiplied with: as wide as a model's

Kind = Literal["bytes", "flops"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a forward can not do without."""

    num_bytes: int
    num_flops: int

    def floor(self, bytes_per_s: float, flops_per_s: float) -> tuple[float, Kind]:
        """The larger floor in seconds, and which one it is."""
        bounds: dict[Kind, float] = {"bytes": self.num_bytes / bytes_per_s, "flops": self.num_flops / flops_per_s}
        kind: Kind = max(bounds, key=lambda kind: bounds[kind])
        return bounds[kind], kind


def verify_work(model: ModelConfig, itemsize: int, lens: Sequence[int], tokens: Sequence[int]) -> Work:
    """For rows that hold `lens[b]` tokens, the root included, and verify `tokens[b]`, the root included.

    Weights are read once, an untied input embedding not at all but for its rows; of the cache what the last token of
    each row sees. Two operations a weight and token, and four a query element and visible key.
    """
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    layer = model.hidden_size * (2 * q_size + 2 * kv_size + 3 * model.intermediate_size)
    products = model.num_layers * layer + model.vocab_size * model.hidden_size
    gathered = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    window = model.sliding_window or model.context_len
    visible = [
        [min(length + place, window) for place in range(count)] for length, count in zip(lens, tokens, strict=True)
    ]
    read = model.num_parameters() - gathered
    read += 2 * model.num_layers * kv_size * sum(keys[-1] for keys in visible)
    attention = 4 * model.num_layers * q_size * sum(map(sum, visible))
    return Work(itemsize * read, 2 * products * sum(tokens) + attention)


@dataclass(frozen=True, slots=True)
class Probe:
    """One way to move bytes or to multiply; `amount` of them a call."""

    name: str
    kind: Kind
    amount: int
    call: Callable[[], object]


def make_probes(device: str, dtype: torch.dtype, mebibytes: int, size: int) -> list[Probe]:
    """Two of each kind: plain torch, and the product that the engine itself uses.

    `mebibytes` must be well above the last cache; `size` is the edge of the matrices that are multiplied.
    """
    rows = max(1, mebibytes * MIB // (COLUMNS * dtype.itemsize))
    # Random numbers, since pages of zeros may never have been there at all.
    matrix = torch.rand((rows, COLUMNS), device=device).to(dtype)
    product, vector = make_product(matrix), torch.rand((1, COLUMNS), device=device).to(dtype)
    left, right = (torch.rand((size, size), device=device).to(dtype) for _ in range(2))
    square = make_product(right)
    num_bytes, num_flops = matrix.numel() * dtype.itemsize, 2 * size**3
    return [
        Probe("sum", "bytes", num_bytes, lambda: matrix.sum()),
        Probe("matrix × vector", "bytes", num_bytes, lambda: product(vector)),
        Probe("matmul", "flops", num_flops, lambda: left @ right),
        Probe("linear", "flops", num_flops, lambda: square(left)),
    ]
