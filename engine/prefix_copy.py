"""Copying the beginning of one row's cache to another row, the drafter's with the target's, in one captured piece.

Its shape depends on the context bucket alone. Rows and lengths are device data.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from adaptive.contract import ceil_bucket
from engine.config import EngineConfig, context_buckets
from engine.drafters import Drafter, KeepsPrefixes, features_of
from engine.graphs import Backend, Piece, Write
from engine.kv import KVCache


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """`rows_4` holds source and target row, and how many tokens to copy of the target's and of the drafter's cache."""

    kv: KVCache
    drafter: Drafter | None
    rows_4: Tensor

    def aim(self, write: Write, source: int, target: int, count: int, drafted: int) -> None:
        write(self.rows_4, (source, target, count, drafted))

    def run(self, context: int) -> None:
        """Copy; the counts are at most `context`."""
        source, target, count, drafted = self.rows_4.unbind()
        self.kv.copy_prefix(source, target, count, context)
        features = features_of(self.drafter)
        if features is not None:
            features.copy(*self.kv.prefix_slots(source, target, count, context))
        if isinstance(self.drafter, KeepsPrefixes):
            self.drafter.copy_prefix(source, target, drafted, context)


class PrefixCopier:
    """The host's side: one piece per context bucket, captured when first met."""

    def __init__(self, config: EngineConfig, copy: PrefixCopy, backend: Backend) -> None:
        self._copy = copy
        self._backend = backend
        self._contexts = context_buckets(config.context_len, coarse=backend.records)
        self._pieces: dict[int, Piece] = {}

    def copy(self, source: int, target: int, count: int, drafted: int) -> None:
        """The first `count` tokens of row `source`, of a drafter's cache the first `drafted` ≤ `count`."""
        context = ceil_bucket(self._contexts, count)
        # before a capture, whose trial run must write nothing else
        self._copy.aim(self._backend.write, source, target, count, drafted)
        if context not in self._pieces:
            self._pieces[context] = self._backend.capture(lambda: self._copy.run(context), [])
        self._pieces[context]()
