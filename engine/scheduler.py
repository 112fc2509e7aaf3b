"""Who sits in which row: admission in order of arrival, release at step edges."""

from __future__ import annotations

import heapq
from collections import deque

from engine.request_state import RequestState


class Scheduler:
    """Waiting requests, and the rows of running ones. The lowest free row is taken first: batches stay narrow."""

    def __init__(self, rows: int) -> None:
        self.waiting: deque[RequestState] = deque()
        self.running: dict[int, RequestState] = {}
        self._free = list(range(rows))

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: RequestState) -> None:
        self.waiting.append(sequence)

    def admit(self) -> list[RequestState]:
        """Give rows to as many waiting requests as there are free ones; returns them."""
        admitted: list[RequestState] = []
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.row = heapq.heappop(self._free)
            self.running[sequence.row] = sequence
            admitted.append(sequence)
        return admitted

    def unseated(self) -> list[RequestState]:
        """Requests whose row has not been written yet, in order of arrival."""
        return [seq for seq in self.running.values() if not seq.seated]

    def release(self, sequence: RequestState) -> None:
        """Free a running request's row."""
        del self.running[sequence.row]
        heapq.heappush(self._free, sequence.row)

    def prefilling(self) -> list[RequestState]:
        """Running requests whose prompt is not in the cache yet, in order of arrival."""
        return [seq for seq in self.running.values() if seq.seated and not seq.decoding]

    def decoding(self) -> list[RequestState]:
        """Requests of the next decode step, by row."""
        return [seq for _, seq in sorted(self.running.items()) if seq.decoding]
