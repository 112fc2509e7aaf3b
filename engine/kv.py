"""The key/value cache: one tensor per layer and half, `rows · capacity` slots a head and one trash slot for padding.

The keys of one head and row stand side by side, since that is how attention reads them.

Shapes: S slots, K key/value heads, D head size, B batch bucket, C context bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVCache:
    """`keys[layer]` and `values[layer]` are `[K, S, D]`; slot = row · capacity + position, the last slot is trash."""

    rows: int
    capacity: int
    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def allocate(cls, model: ModelConfig, rows: int, capacity: int, dtype: torch.dtype, device: str) -> KVCache:
        # Zeros, not empty: a masked key still enters 0 · value, which must not be 0 · nan.
        shape = (model.num_kv_heads, rows * capacity + 1, model.head_dim)
        halves = [[torch.zeros(shape, dtype=dtype, device=device) for _ in range(model.num_layers)] for _ in range(2)]
        return cls(rows, capacity, halves[0], halves[1])

    @staticmethod
    def bytes_needed(model: ModelConfig, rows: int, capacity: int, dtype: torch.dtype) -> int:
        per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
        return (rows * capacity + 1) * per_token

    @property
    def trash_slot(self) -> int:
        return self.rows * self.capacity

    def write(self, layer: int, slots_N: Tensor, keys_NKD: Tensor, values_NKD: Tensor) -> None:
        # Not an assignment, which torch spreads over threads: on a busy machine it waits for the last of them.
        self.keys[layer].index_copy_(1, slots_N, keys_NKD.transpose(0, 1))
        self.values[layer].index_copy_(1, slots_N, values_NKD.transpose(0, 1))

    def move(self, from_N: Tensor, to_N: Tensor) -> None:
        """Copy slots to others in every layer; all are read before any is written."""
        for half in (*self.keys, *self.values):
            half.index_copy_(1, to_N, half.index_select(1, from_N))

    def move_path(self, root_B: Tensor, path_BP: Tensor, count_B: Tensor) -> None:
        """Bring the first `count_B` nodes of each row's path to the slots right after its root.

        `root_B` are positions, `path_BP` slots counted from the root, itself first.
        """
        step_P = torch.arange(path_BP.shape[1], device=path_BP.device)
        root_B1 = (torch.arange(path_BP.shape[0], device=path_BP.device) * self.capacity + root_B).unsqueeze(1)
        moves_BP = (step_P > 0) & (step_P <= count_B.unsqueeze(1))
        from_BP, to_BP = (torch.where(moves_BP, root_B1 + after, self.trash_slot) for after in (path_BP, step_P))
        self.move(from_BP.flatten(), to_BP.flatten())

    def batch(self, layer: int, batch: int, context: int) -> tuple[Tensor, Tensor]:
        """The first `context` positions of the first `batch` rows as `[B, K, C, D]` views (nothing is copied)."""
        return (self._view(self.keys[layer], batch, context), self._view(self.values[layer], batch, context))

    def _view(self, half: Tensor, batch: int, context: int) -> Tensor:
        by_row = half[:, :-1].view(half.shape[0], self.rows, self.capacity, half.shape[2])
        return by_row[:, :batch, :context].transpose(0, 1)

    def copy_prefix(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> None:
        """Copy the first `count` ≤ `context` positions from row to row; all three numbers are the device's."""
        self.move(*self.prefix_slots(source, target, count, context))

    def prefix_slots(self, source: Tensor, target: Tensor, count: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Where `copy_prefix` reads and writes `[C]` each; what is beyond `count` goes to trash."""
        index_C = torch.arange(context, device=count.device)
        to_C = torch.where(index_C < count, target * self.capacity + index_C, self.trash_slot)
        return source * self.capacity + index_C, to_C

    def gather(self, layer: int, slots_C: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen slots as `[1, K, C, D]` copies, for a row known only on the device."""
        keys, values = (half[layer].index_select(1, slots_C) for half in (self.keys, self.values))
        return keys.unsqueeze(0), values.unsqueeze(0)
