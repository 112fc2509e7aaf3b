"""Pieces are called as they are, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.graphs.base import HostAccess, Piece


class EagerBackend(HostAccess):
    """Runs the piece itself: capturing is free."""

    records = False

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.overlaps = self.device.type == "cuda"

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        return piece

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
