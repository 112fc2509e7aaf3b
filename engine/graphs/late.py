"""A stream on a CPU that runs everything as late as is legal, for tests.

Immediate execution hides races: whatever the host changes too early, or reads without waiting, happens to be right.
Here launches and writes queue up until the host truly waits, so that it shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.graphs.base import Answer, HostValue, Piece, poison


class LateBackend:
    """Nothing runs before `read` or `synchronize`; then all of it does, in order. Outputs are poisoned."""

    records = False
    overlaps = True

    def __init__(self) -> None:
        self._queue: deque[Callable[[], object]] = deque()

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        def launch() -> None:
            self._queue.extend((lambda: poison(outputs), piece))

        return launch

    def write(self, place: Tensor, value: HostValue) -> None:
        staged = torch.tensor(value, dtype=place.dtype)
        self._queue.append(lambda: place.copy_(staged))

    def read(self, buffer: Tensor) -> NDArray[Any]:
        self.synchronize()
        return buffer.numpy()

    def ask(self, buffer: Tensor) -> Answer:
        host = torch.empty_like(buffer)

        def copy() -> None:
            host.copy_(buffer)

        def wait() -> NDArray[Any]:
            while copy in self._queue:
                self._queue.popleft()()
            return host.numpy()

        self._queue.append(copy)

        return wait

    def synchronize(self) -> None:
        while self._queue:
            self._queue.popleft()()
