"""Who sits in which row: admission in order of arrival, release at step edges."""

from __future__ import annotations

import heapq
from collections import deque

from engine.sequence import Sequence


class Scheduler:
    """Waiting requests, and the rows of running ones. The lowest free row is taken first: batches stay narrow."""

    def __init__(self, rows: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self._free = list(range(rows))

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give rows to as many waiting requests as there are free ones; returns them."""
        admitted: list[Sequence] = []
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.row = heapq.heappop(self._free)
            self.running[sequence.row] = sequence
            admitted.append(sequence)
        return admitted

    def unseated(self) -> list[Sequence]:
        """Requests whose row has not been written yet, in order of arrival."""
        return [seq for seq in self.running.values() if not seq.seated]

    def release(self, sequence: Sequence) -> None:
        """Free a running request's row."""
        del self.running[sequence.row]
        heapq.heappush(self._free, sequence.row)

    def prefilling(self) -> list[Sequence]:
        """Running requests whose prompt is not in the cache yet, in order of arrival."""
        return [seq for seq in self.running.values() if seq.seated and not seq.decoding]

    def decoding(self) -> list[Sequence]:
        """Requests of the next decode step, by row."""
        return [seq for _, seq in sorted(self.running.items()) if seq.decoding]
