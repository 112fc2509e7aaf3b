"""A backend that records on a CPU, for tests of when recording happens and of what it leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.graphs import EagerBackend, Piece
from engine.graphs.base import restored


class RehearsingBackend(EagerBackend):
    """Records as a GPU would, trial run and all, but replays by calling; counts what is recorded."""

    records = True

    def __init__(self) -> None:
        super().__init__("cpu")
        self.captures = 0

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        self.captures += 1
        with restored(mutable):
            piece()
        return piece
