"""The thin last layer between a step and the device: pieces, and the backends that run them."""

from engine.graphs.base import Answer, Backend, HostValue, Piece, Read, Write
from engine.graphs.cuda import CudaGraphBackend
from engine.graphs.eager import EagerBackend
from engine.graphs.late import LateBackend
from engine.graphs.replay import ReplayBackend

__all__ = [
    "Answer",
    "Backend",
    "CudaGraphBackend",
    "EagerBackend",
    "HostValue",
    "LateBackend",
    "Piece",
    "Read",
    "ReplayBackend",
    "Write",
    "make_backend",
]


def make_backend(name: str, device: str) -> Backend:
    """`eager` or `cuda`; for tests on a CPU `replay` or `late`."""
    if name == "cuda":
        return CudaGraphBackend(device)
    if name == "late":
        return LateBackend()
    if name == "replay":
        return ReplayBackend()
    return EagerBackend(device)
