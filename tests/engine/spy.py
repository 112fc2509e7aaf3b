"""Which pieces a step runs, and how often it reads from the device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from engine.core import LLMEngine
from engine.graphs import EagerBackend, Piece
from tests.engine.capture_law import HostReads

NAMES = ("verify", "accept", "draft", "run", "catch_up", "take_in", "grow")


class Spy(EagerBackend):
    """Keeps the order in which pieces run, and counts reads. Engines made after it use it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("cpu")
        self.events: list[str] = []
        monkeypatch.setattr("engine.core.make_backend", lambda name, device: self)
        self._reads = HostReads(monkeypatch.setattr)

    def capture(self, piece: Piece, mutable: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> Piece:
        name = next(name for name in NAMES if name in piece.__code__.co_names)

        def spied() -> None:
            self.events.append(name)
            piece()

        return spied

    def step(self, engine: LLMEngine) -> tuple[int, str]:
        """Reads of one step, and its pieces in order."""
        self._reads.count = 0
        self.events.clear()
        engine.step()
        return self._reads.count, " ".join(self.events)

    def steps(self, engine: LLMEngine, count: int) -> list[str]:
        """The pieces of each of so many steps, which read once."""
        seen = [self.step(engine) for _ in range(count)]
        assert {reads for reads, _ in seen} == {1}
        return [pieces for _, pieces in seen]
