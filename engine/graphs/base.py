"""How a step's pieces are run, and how the host writes to and reads from the buffers between them.

A piece is a function without arguments or result that reads and writes persistent buffers only. That makes it legal
to record as a CUDA graph; on a CPU the very same function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

Piece = Callable[[], None]
HostValue = int | float | Sequence[int] | Sequence[float] | NDArray[Any]
Write = Callable[[Tensor, HostValue], None]
Read = Callable[[Tensor], NDArray[Any]]
Answer = Callable[[], NDArray[Any]]


class Backend(Protocol):
    """One queue to the device: pieces and writes take effect in the order in which they were asked for."""

    records: bool
    """Whether capturing costs time and memory, so that pieces are better captured before serving."""
    overlaps: bool
    """Whether a launch returns before its work is done, so that the host had better look one piece late."""

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        """Turn a piece into something that replays it.

        `mutable` lists the buffers that a trial run would change and that must be put back afterwards. `outputs` are
        buffers whose content is dead once the piece starts: whoever needs them later needs what this piece writes.
        """

    def write(self, place: Tensor, value: HostValue) -> None:
        """Set a buffer, or a view of one, from the host. `value` may be changed as soon as this returns."""

    def read(self, buffer: Tensor) -> NDArray[Any]:
        """A buffer's values on the host, good until the next launch. This is where the host waits."""

    def ask(self, buffer: Tensor) -> Answer:
        """What `read` would give now, to be waited for while later pieces run. Good until the launch after that."""

    def synchronize(self) -> None:
        """Wait until everything launched so far has finished."""


class HostAccess:
    """Writes and reads of a backend whose device keeps their order by itself, on a CPU by doing them at once."""

    def write(self, place: Tensor, value: HostValue) -> None:
        store(place, value)

    def read(self, buffer: Tensor) -> NDArray[Any]:
        return fetch(buffer)

    def ask(self, buffer: Tensor) -> Answer:
        return promise(buffer)


def store(place: Tensor, value: HostValue) -> None:
    """Write without waiting: what is not a single number goes to a GPU through pinned memory."""
    if isinstance(value, int | float):
        place.fill_(value)
    else:
        staged = torch.tensor(value, dtype=place.dtype, pin_memory=place.is_cuda)
        place.copy_(staged, non_blocking=True)


def fetch(buffer: Tensor) -> NDArray[Any]:
    """The only wait of a step."""
    return promise(buffer)()


def promise(buffer: Tensor) -> Answer:
    """On a CPU the buffer is at hand. From a GPU it is copied, and an event tells when."""
    if not buffer.is_cuda:
        return buffer.numpy
    host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
    host.copy_(buffer, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(buffer.device))

    def wait() -> NDArray[Any]:
        copied.synchronize()
        return host.numpy()

    return wait


@contextmanager
def restored(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Puts the buffers back as they were, after a trial run."""
    saved = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, before in zip(buffers, saved, strict=True):
            buffer.copy_(before)


def poison(buffers: Sequence[Tensor]) -> None:
    """Fill with what no step computes, so that whoever reads a stale value does not get away with it."""
    for buffer in buffers:
        buffer.fill_(float("nan") if buffer.is_floating_point() else -1)
