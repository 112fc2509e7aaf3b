"""The thin last layer: how a captured piece of a step is run.

A piece is a function without arguments or result that reads and writes persistent buffers only. That makes it legal
to record as a CUDA graph; on a CPU the very same function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Piece = Callable[[], None]


class Backend(Protocol):
    """Turns a piece into something that replays it."""

    name: str

    def capture(self, piece: Piece, mutable: Sequence[Tensor]) -> Piece:
        """`mutable` lists the buffers that a trial run would change and that must be put back afterwards."""

    def synchronize(self) -> None:
        """Wait until everything launched so far has finished."""


class EagerBackend:
    """Runs the piece as it is, on any device."""

    name = "eager"

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def capture(self, piece: Piece, mutable: Sequence[Tensor]) -> Piece:
        return piece

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class CudaGraphBackend:
    """Records each piece as a CUDA graph; all graphs share one memory pool and one capture stream."""

    name = "cuda"

    def __init__(self, device: str) -> None:
        if not torch.cuda.is_available():
            raise ValueError("backend='cuda' needs a CUDA device and torch finds none: use backend='eager'")
        self.device = torch.device(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(self.device)

    def capture(self, piece: Piece, mutable: Sequence[Tensor]) -> Piece:
        saved = [buffer.clone() for buffer in mutable]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            piece()  # lets cuBLAS and the allocator set up outside the recording
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        for buffer, before in zip(mutable, saved, strict=True):
            buffer.copy_(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            piece()
        return graph.replay

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def make_backend(name: str, device: str) -> Backend:
    """`eager` or `cuda`."""
    return CudaGraphBackend(device) if name == "cuda" else EagerBackend(device)
