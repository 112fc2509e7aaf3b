"""Pieces are called as they are, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.graphs.base import Answer, HostValue, Piece, fetch, promise, store


class EagerBackend:
    """Runs the piece itself: capturing is free."""

    records = False

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.overlaps = self.device.type == "cuda"

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        return piece

    def write(self, place: Tensor, value: HostValue) -> None:
        store(place, value)

    def read(self, buffer: Tensor) -> NDArray[Any]:
        return fetch(buffer)

    def ask(self, buffer: Tensor) -> Answer:
        return promise(buffer)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
