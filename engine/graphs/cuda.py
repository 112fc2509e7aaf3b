"""Each piece is recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.graphs.base import HostAccess, Piece, restored


class CudaGraphBackend(HostAccess):
    """All graphs share one memory pool and one capture stream."""

    records = True
    overlaps = True

    def __init__(self, device: str) -> None:
        if not torch.cuda.is_available():
            raise ValueError("backend='cuda' needs a CUDA device and torch finds none: use backend='eager'")
        self.device = torch.device(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(self.device)

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        with restored(mutable):
            self._warm_up(piece)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            piece()
        return graph.replay

    def _warm_up(self, piece: Piece) -> None:
        """Lets cuBLAS and the allocator set up outside the recording."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            piece()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
