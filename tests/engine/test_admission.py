"""Scheduler, rows and what their caches hold, against a model of a cache that knows which tokens it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor

from adaptive.requests import Request, Sampling
from engine.admission import Admission
from engine.batch import RowState
from engine.graphs import EagerBackend, HostValue, Piece
from engine.intake import Intake
from engine.observe import Observer
from engine.prefix import PrefixIndex
from engine.prefix_copy import PrefixCopier
from engine.request_state import RequestState
from engine.runner import StepRunner
from engine.scheduler import Scheduler, rank

ROWS, CAPACITY, GAMMA, STOP = 3, 64, 3, 3
BASES = ([0, 1] * 10, [0, 1] * 9 + [2, 2] * 4, [2] * 18)
GARBAGE = -1
UNLIMITED = 1 << 30


class CutShortError(Exception):
    """An exception out of nowhere."""


class Backend(EagerBackend):
    """Writes at once; fails at the n-th write when told to."""

    left = UNLIMITED

    def __init__(self) -> None:
        super().__init__("cpu")

    def write(self, place: Tensor, value: HostValue) -> None:
        self.left -= 1
        if self.left < 0:
            raise CutShortError
        super().write(place, value)


def told(tokens: Sequence[int]) -> list[int]:
    """For each place a number that tells the tokens up to there, as a key does: it depends on all before it."""
    return list(accumulate(tokens, lambda before, token: hash((before, token)), initial=0))[1:]


class Cache:
    """Which tokens the key at each place was computed from."""

    def __init__(self) -> None:
        self.seen = [[GARBAGE] * CAPACITY for _ in range(ROWS)]

    def fill(self, row: int, tokens: Sequence[int], start: int, end: int) -> None:
        self.seen[row][start:end] = told(tokens)[start:end]

    def spoil(self, row: int, start: int, end: int) -> None:
        self.seen[row][start:end] = [GARBAGE] * len(self.seen[row][start:end])

    def copy(self, source: int, target: int, count: int) -> None:
        self.seen[target][:count] = self.seen[source][:count]

    def holds(self, row: int, tokens: Sequence[int], count: int) -> bool:
        return self.seen[row][:count] == told(tokens)[:count]


class Machine:
    """Stands in for runner and copier: launches go to the two caches."""

    def __init__(self, state: RowState) -> None:
        self.backend = Backend()
        self.drafts_fresh = False
        self.index = None
        self.target, self.drafter = Cache(), Cache()
        self._state = state

    def timed(self, launch: Piece) -> float:
        launch()
        return 1.0

    def prefill(self, row: int, start: int, count: int) -> None:
        assert 0 <= start < start + count < int(self._state.lens_R[row])
        tokens = self._state.history_RP[row].tolist()
        assert self.target.holds(row, tokens, start), "what is read stands on what was read"
        self.target.fill(row, tokens, start, start + count)

    def copy(self, source: int, target: int, count: int, drafted: int) -> None:
        assert source != target
        assert 0 <= drafted <= count
        self.target.copy(source, target, count // 2)
        self.backend.write(self._state.steps_R[-1], 0)  # where an exception may strike
        self.target.copy(source, target, count)
        self.drafter.copy(source, target, drafted)


class Serving(RuleBasedStateMachine):
    """Submit, admit (and preempt), prefill, decode, finish and cancel, in any order, some of it cut short."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(ROWS)
        self.state = RowState(ROWS, CAPACITY, GAMMA, "cpu")
        self.machine = Machine(self.state)
        self.index = PrefixIndex(ROWS, CAPACITY, drafts=True)
        self.intake = Intake(CAPACITY, STOP + 1, None)
        self.observer = Observer(ROWS, lambda: 0.0)
        self.open: dict[str, RequestState] = {}
        self.ended: list[RequestState] = []
        self.forgotten: Counter[int] = Counter()
        runner, copier = cast(StepRunner, self.machine), cast(PrefixCopier, self.machine)
        self.admission = Admission(
            self.scheduler, self.state, self.observer, runner, self.index, copier, self.forgotten.update
        )

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(
        base=st.sampled_from(BASES),
        cut=st.integers(1, 26),
        tail=st.lists(st.integers(0, 2), max_size=3),
        budget=st.integers(1, 12),
        priority=st.integers(-1, 1),
    )
    def submit(self, base: list[int], cut: int, tail: list[int], budget: int, priority: int) -> None:
        self._submit([*base[:cut], *tail], budget, priority)

    @precondition(lambda self: self.open or self.ended)
    @rule(data=st.data(), tail=st.lists(st.integers(0, 2), min_size=1, max_size=4), priority=st.integers(-1, 1))
    def take_up(self, data: st.DataObject, tail: list[int], priority: int) -> None:
        """A prompt that goes on from what another request has so far."""
        earlier = data.draw(st.sampled_from([*self.open.values(), *self.ended[-6:]]))
        self._submit([*earlier.all_tokens(), *tail][: CAPACITY - 4], 6, priority)

    def _submit(self, prompt: list[int], budget: int, priority: int) -> None:
        name = str(len(self.open) + len(self.ended))
        sampling = Sampling(max_tokens=budget, stop_token_ids=(STOP,))
        request = self.intake.accept(Request(prompt, sampling, priority=priority), name, 0.0)
        self.open[name] = request
        self.scheduler.add(request)

    @rule()
    def admit(self) -> None:
        self.admission.run()
        assert not self.scheduler.unseated()
        if self.scheduler.waiting:
            assert not self.scheduler.free
            last = max(request.request.priority * -1 for request in self.scheduler.running.values())
            assert -last >= self.scheduler.waiting[0].request.priority

    @precondition(lambda self: self.scheduler.waiting)
    @rule(writes=st.integers(0, 40))
    def admit_cut_short(self, writes: int) -> None:
        self.machine.backend.left = writes
        try:
            self.admission.run()
        except CutShortError:
            self.machine.backend.left = UNLIMITED
            for request in self.scheduler.running.values():
                if request.seated:
                    self.admission.align(request)
        self.machine.backend.left = UNLIMITED

    @rule(allowance=st.integers(1, 24))
    def prefill(self, allowance: int) -> None:
        before = sum(request.prefilled for request in self.scheduler.running.values())
        reused = self.admission.counts.reused_tokens
        read = self.admission.prefill(allowance)
        grown = sum(request.prefilled for request in self.scheduler.running.values()) - before
        assert grown == read + self.admission.counts.reused_tokens - reused
        assert read == allowance or not self.scheduler.prefilling()

    @precondition(lambda self: self.scheduler.decoding())
    @rule(data=st.data(), gamma=st.integers(0, GAMMA))
    def decode(self, data: st.DataObject, gamma: int) -> None:
        for request in self.scheduler.decoding():
            deepest = min(gamma, request.room)
            stood = data.draw(st.integers(0, deepest))
            tokens = st.lists(st.sampled_from([0, 1, 2, 2, STOP]), min_size=stood + 1, max_size=stood + 1)
            self._emit(request, gamma, deepest, data.draw(tokens))
        self._end_finished()

    def _emit(self, request: RequestState, gamma: int, deepest: int, new: list[int]) -> None:
        """A step that drafts γ tokens, verifies `deepest` and accepts all but one of `new`."""
        row, before, stood = request.row, request.all_tokens(), len(new) - 1
        after = [*before, *new]
        self.machine.target.spoil(row, len(before) - 1, len(before) + deepest)
        self.machine.target.fill(row, after, len(before) - 1, len(before) + stood)
        if deepest:
            self.machine.drafter.fill(row, before, request.cached, len(before))
            self.machine.drafter.spoil(row, len(before), len(before) + gamma - 1)
            request.cached = len(before) + min(gamma - 1, stood)
            self.machine.drafter.fill(row, after, len(before), request.cached)
        self.state.history_RP[row, : len(after)].copy_(self.state.history_RP.new_tensor(after))
        self.state.lens_R[row] = len(after)
        self.state.budget_R[row] -= len(new)
        self.state.steps_R[row] += 1
        self.state.cached_R[row] = request.cached
        request.record(gamma, [1] * deepest, stood)
        request.extend(new, 0.0, None)

    def _end_finished(self) -> None:
        self._end([one for one in self.scheduler.running.values() if one.finish_reason is not None])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.open.values())))
        if request.row < 0:
            self.scheduler.withdraw(request)
        request.cancel()
        self._end([request])

    def _end(self, ended: Sequence[RequestState]) -> None:
        self.admission.release([request for request in ended if request.row >= 0])
        for request in ended:
            del self.open[request.id]
            self.ended.append(request)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def every_row_is_free_or_taken_and_every_request_waits_or_runs(self) -> None:
        assert sorted([*self.scheduler.free, *self.scheduler.running]) == list(range(ROWS))
        assert self.scheduler.free == sorted(self.scheduler.free)
        assert all(row == request.row for row, request in self.scheduler.running.items())
        assert self.scheduler.waiting == sorted(self.scheduler.waiting, key=rank)
        assert all(request.row == -1 and not request.seated for request in self.scheduler.waiting)
        known = [*self.scheduler.waiting, *self.scheduler.running.values()]
        assert {request.id for request in known} == set(self.open)
        assert len(known) == len(self.open)

    @invariant()
    def rows_are_forgotten_before_they_are_taken_again(self) -> None:
        taken = self.admission.counts.admitted - len(self.scheduler.running)
        assert self.forgotten.total() >= taken

    @invariant()
    def what_the_host_believes_stands_in_the_caches(self) -> None:
        for request in self.scheduler.running.values():
            if request.seated:
                count = request.context_len - 1 if request.decoding else request.prefilled
                assert request.cached <= count <= request.context_len - 1
                assert self.machine.target.holds(request.row, request.all_tokens(), count)
                assert self.machine.drafter.holds(request.row, request.all_tokens(), request.cached)

    @invariant()
    def what_the_index_says_stands_in_the_caches(self) -> None:
        for row in range(ROWS):
            tokens = self.index._tokens_RP[row].tolist()
            assert self.machine.target.holds(row, tokens, int(self.index.held_R[row]))
            assert self.machine.drafter.holds(row, tokens, int(self.index.drafted_R[row]))

    @invariant()
    def the_device_knows_what_it_needs(self) -> None:
        live = self.state.live_R[:ROWS].tolist()
        assert [row for row in range(ROWS) if live[row]] == sorted(one.row for one in self.scheduler.decoding())
        for request in self.scheduler.running.values():
            if request.seated and request.finish_reason is None:
                row, tokens = request.row, request.all_tokens()
                assert self.state.history_RP[row, : len(tokens)].tolist() == tokens
                assert int(self.state.lens_R[row]) == len(tokens)
                assert int(self.state.budget_R[row]) == request.budget - len(request.tokens)
                assert int(self.state.steps_R[row]) == request.steps
                assert int(self.state.seeds_R[row]) == request.seed
                assert int(self.state.cached_R[row]) == request.cached

    def teardown(self) -> None:
        """Everyone is served in the end, and nothing is left."""
        for _ in range(400):
            if self.scheduler.idle:
                break
            self.admission.run()
            self.admission.prefill(64)
            for request in self.scheduler.decoding():
                self._emit(request, 0, 0, [0])
            self._end_finished()
        assert self.scheduler.free == list(range(ROWS))
        assert not self.open
        assert not self.scheduler.waiting
        assert not self.state.live_R.any()


Serving.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestServing = Serving.TestCase


def test_a_move_cut_short_makes_no_false_claim() -> None:
    """Three contents fill the rows; a fourth request sends the newest to where the oldest is, and is cut short."""
    serving = Serving()
    for token in (0, 1, 2):
        serving._submit([token] * 30, budget=1, priority=0)
        serving.admission.run()
        serving.admission.prefill(64)
        serving._emit(serving.scheduler.running[0], 0, 0, [0])
        serving._end_finished()
    assert serving.index.held_R.tolist() == [30, 30, 30]
    serving._submit([0, 1] * 10, budget=1, priority=0)
    serving.machine.backend.left = 0
    with pytest.raises(CutShortError):
        serving.admission.run()
    serving.machine.backend.left = UNLIMITED
    assert serving.index.held_R.tolist().count(30) == 2, "the oldest is lost, the others stand"
    serving.what_the_index_says_stands_in_the_caches()
    serving.admission.run()
    serving.what_the_index_says_stands_in_the_caches()
    serving.teardown()
