"""Who sits in which row: by priority, then in order of arrival. Rows change hands at step edges.

A row is the unit of memory: it holds the longest request that the engine takes, so that a running request never runs
out of room. Memory is short when no row is free.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort

from engine.request_state import RequestState


def rank(request: RequestState) -> tuple[int, int]:
    """Sorts those served first to the front: the higher priority, then the earlier arrival."""
    return (-request.request.priority, request.arrival)


class Scheduler:
    """Waiting requests, the rows of running ones, and free rows. Nobody overtakes an equal."""

    def __init__(self, rows: int) -> None:
        self.waiting: list[RequestState] = []  # in the order in which they will be served
        self.running: dict[int, RequestState] = {}
        self.free = list(range(rows))  # ascending
        self._arrivals = itertools.count()

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: RequestState) -> None:
        request.arrival = next(self._arrivals)
        insort(self.waiting, request, key=rank)

    def withdraw(self, request: RequestState) -> None:
        """Take a waiting request out of the queue, if it is still there."""
        place = bisect_left(self.waiting, rank(request), key=rank)
        if self.waiting[place : place + 1] == [request]:
            del self.waiting[place]

    def admit(self, row: int | None = None) -> RequestState:
        """Give the first waiting request a free row: the lowest, so that batches stay narrow, unless told which."""
        taken = self.free.pop(0 if row is None else self.free.index(row))
        request = self.waiting.pop(0)
        request.row = taken
        self.running[taken] = request
        return request

    def victim(self) -> RequestState | None:
        """Who must give way to the first waiting request, if anyone: no row is free, and it has a lower priority.

        Of several, the lowest priority, and of equals the latest arrival, which has least to lose.
        """
        if self.free or not self.waiting:
            return None
        last = max(self.running.values(), key=rank)
        return last if last.request.priority < self.waiting[0].request.priority else None

    def preempt(self, request: RequestState) -> None:
        """Take a running request's row; it waits again, ahead of all of its priority that came after it."""
        self.release(request)
        request.leave_row()
        insort(self.waiting, request, key=rank)

    def release(self, request: RequestState) -> None:
        """Free a running request's row."""
        del self.running[request.row]
        insort(self.free, request.row)

    def unseated(self) -> list[RequestState]:
        """Requests whose row has not been written yet: an interrupted step leaves some."""
        return [request for request in self.running.values() if not request.seated]

    def prefilling(self) -> list[RequestState]:
        """Running requests whose tokens are not in the cache yet, those to be served first in front."""
        return sorted((one for one in self.running.values() if one.seated and not one.decoding), key=rank)

    def decoding(self) -> list[RequestState]:
        """Requests of the next decode step, by row."""
        return [request for _, request in sorted(self.running.items()) if request.decoding]
