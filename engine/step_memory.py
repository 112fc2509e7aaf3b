"""What one step takes beside what stays: the tensors that are alive at once while its pieces run.

Counted on a sketch, tensor by tensor; what kernels need inside themselves is not known. CUDA graphs share one pool, so
that the largest bundle counts, not their sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adaptive.contract import ceil_bucket
from engine.config import doubling_buckets
from engine.core import LLMEngine
from engine.footprint import Ledger
from engine.graphs import Piece
from engine.step import StepKey


def largest_step(engine: LLMEngine, batch: int) -> int:
    """Bytes at the peak of the widest bundle of a batch size: deepest γ, full rectangle, all of the context."""
    step, gamma = engine.runner._step, engine.state.max_gamma
    bucket = ceil_bucket(doubling_buckets(engine.config.max_batch), batch)
    key = StepKey(bucket, gamma, bucket * (gamma + 1), engine.config.context_len)
    pieces: list[Piece] = [partial(step.verify, key), partial(step.accept, key)]
    pieces += [partial(step.draft, key.draft, position) for position in range(step.draft_pieces(gamma))]
    standing = Ledger()
    standing.add(engine)
    return max(_live(piece, standing.storages) for piece in pieces)


def _live(piece: Piece, standing: set[int]) -> int:
    live = LiveBytes(standing)
    with live, FusedAttention():
        piece()
    return live.peak


class FusedAttention(TorchFunctionMode):
    """Attention as one kernel, as it is on a real device: no table of scores."""

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            query, _, value = args[:3]
            return query.new_empty((*query.shape[:-1], value.shape[-1]))
        return func(*args, **(kwargs or {}))


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that operations make, as long as some tensor uses them; those `standing` do not count."""

    def __init__(self, standing: Iterable[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._standing = set(standing)
        self._users: dict[int, int] = {}
        self._bytes = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and not tensor.is_mkldnn:
                self._note(tensor)
        self.peak = max(self.peak, self._bytes)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._standing:
            return
        if key not in self._users:
            self._users[key] = 0
            self._bytes += size
        self._users[key] += 1
        weakref.finalize(tensor, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._bytes -= size
