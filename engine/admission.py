"""Rows change hands: who takes which, what its cache keeps, and who has to give way.

The device's buffers, the scheduler, the host's picture of the batch and the index of prefixes are kept in step here.
Whatever an exception cuts short is done again at the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.batch import RowState
from engine.observe import Observer
from engine.prefix import SHORTEST, PrefixIndex
from engine.prefix_copy import PrefixCopier
from engine.request_state import RequestState
from engine.runner import StepRunner
from engine.scheduler import Scheduler

Forget = Callable[[Sequence[int]], None]


@dataclass(slots=True)
class ServingCounts:
    """Totals since the engine was made. Tokens and seconds of prompts count what preempted requests computed again."""

    admitted: int = 0
    preempted: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    prefill_s: float = 0.0  # reading and copying; nan where launches return before the work is done


class Admission:
    """Seats requests, and frees rows. `forget` tells the controller, before a row can be taken again."""

    def __init__(
        self,
        scheduler: Scheduler,
        state: RowState,
        observer: Observer,
        runner: StepRunner,
        prefixes: PrefixIndex | None,
        copier: PrefixCopier,
        forget: Forget,
    ) -> None:
        self.counts = ServingCounts()
        self._scheduler = scheduler
        self._state = state
        self._observer = observer
        self._runner = runner
        self._prefixes = prefixes
        self._copier = copier
        self._forget = forget

    def run(self) -> None:
        """Give rows to waiting requests while there are any, and while one may take another's."""
        for request in self._scheduler.unseated():
            self._seat(request)
        while self._scheduler.waiting:
            victim = self._scheduler.victim()
            if victim is not None:
                self._preempt(victim)
            if not self._scheduler.free:
                break
            self.counts.admitted += 1
            self._seat(self._scheduler.admit(self._choose()))

    def release(self, requests: Sequence[RequestState]) -> None:
        """Free the rows of running requests."""
        if self._runner.index is not None:
            for request in requests:
                self._runner.index.retire(request)
        self._vacate(requests)
        for request in requests:
            self._scheduler.release(request)

    def _preempt(self, request: RequestState) -> None:
        self._vacate([request])
        self._scheduler.preempt(request)
        self.counts.preempted += 1

    def _vacate(self, requests: Sequence[RequestState]) -> None:
        for request in requests:
            self._state.release(self._runner.backend.write, request.row)
        if requests:
            self._forget([request.row for request in requests])
        if self._prefixes is not None:
            for request in requests:
                self._prefixes.release(request)

    def align(self, request: RequestState) -> None:
        """Set what an interrupted step may have left half done; `request` counts, but for its drafter's cache."""
        write = self._runner.backend.write
        request.cached = 0
        self._state.align(write, request.row, request.budget - len(request.tokens), request.steps)
        self._observer.align(request)
        if request.decoding:
            self._state.start(write, request.row)

    def start(self, request: RequestState) -> None:
        """All but a request's last token is in the cache: it decodes from now on."""
        self._state.start(self._runner.backend.write, request.row)
        self._runner.drafts_fresh = False

    def _choose(self) -> int | None:
        if self._prefixes is None:
            return None
        self._prefixes.follow(self._scheduler.running.values())
        shared_R = self._prefixes.shared(self._scheduler.waiting[0].all_tokens())
        return self._prefixes.choose(self._scheduler.free, shared_R)

    def _seat(self, request: RequestState) -> None:
        request.resumed = len(request.tokens)
        request.prefilled = request.cached = 0
        if self._prefixes is not None:
            self._keep(self._prefixes, request)
        self._state.admit(self._runner.backend.write, request)
        if self._runner.index is not None:
            self._runner.index.admit(request.row)
        self._observer.seat(request)
        request.seated = True
        self._count_reused(request, request.prefilled)
        self.reuse(request)  # at once, before the next one to be seated overwrites it
        if request.decoding:
            self.start(request)

    def _keep(self, prefixes: PrefixIndex, request: RequestState) -> None:
        """What the row holds of the request's tokens stays; what else it holds moves to an older one's place."""
        row = request.row
        shared_R = prefixes.shared(request.all_tokens())
        kept, best = int(shared_R[row]), int(shared_R.argmax()) if shared_R.any() else None
        refuge = prefixes.refuge(row, kept, self._scheduler.free, avoid=best)
        if refuge is not None:
            prefixes.clear(refuge)
            self._copy(request, row, refuge, int(prefixes.held_R[row]), int(prefixes.drafted_R[row]))
            prefixes.copied(row, refuge)
        prefixes.take(request, kept)
        request.prefilled, request.cached = kept, int(prefixes.drafted_R[row])

    def reuse(self, request: RequestState) -> None:
        """Copy from another row what its cache holds of a request's tokens and the request's own does not, yet."""
        prefixes = self._prefixes
        if prefixes is None or request.decoding:
            return
        prefixes.follow(self._scheduler.running.values())
        shared_R = prefixes.shared(request.all_tokens())
        source = int(shared_R.argmax())
        count = int(shared_R[source])
        gain = count - request.prefilled
        if gain < max(1, min(SHORTEST, request.goal - request.prefilled)):
            return
        drafted = min(count, int(prefixes.drafted_R[source]))
        if drafted <= request.cached:
            drafted = 0
        self._copy(request, source, request.row, count, drafted)
        prefixes.reused(source, count)
        request.prefilled = count
        if drafted:
            request.cached = drafted
            self._state.restore(self._runner.backend.write, request.row, drafted)
        self._count_reused(request, gain)

    def _copy(self, request: RequestState, source: int, target: int, count: int, drafted: int) -> None:
        seconds = self._runner.timed(lambda: self._copier.copy(source, target, count, drafted))
        request.prefill_s += seconds
        self.counts.prefill_s += seconds

    def _count_reused(self, request: RequestState, tokens: int) -> None:
        self.counts.reused_tokens += tokens
        if not request.preemptions:
            request.cached_prompt_tokens += tokens

    def prefill(self, allowance: int) -> int:
        """Work on the unfinished prompts of those to be served first, up to `allowance` tokens; returns how many."""
        left = allowance
        for request in self._scheduler.prefilling():
            self.reuse(request)  # one that was read meanwhile may have begun alike
            count = min(left, request.goal - request.prefilled)
            if count:
                self._read(request, count)
                left -= count
            if request.decoding:
                self.start(request)
            if left == 0:
                break
        self.counts.prefill_tokens += allowance - left
        return allowance - left

    def _read(self, request: RequestState, count: int) -> None:
        seconds = self._runner.timed(lambda: self._runner.prefill(request.row, request.prefilled, count))
        request.prefilled += count
        request.prefill_s += seconds
        self.counts.prefill_s += seconds
