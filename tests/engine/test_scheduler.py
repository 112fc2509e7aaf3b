from __future__ import annotations

from adaptive.requests import Request
from engine.request_state import NoText, RequestState
from engine.scheduler import Scheduler, rank
from engine.stop import StopText


def sequence(name: int, prompt: int = 1, priority: int = 0) -> RequestState:
    return RequestState(
        id=str(name),
        request=Request([0] * prompt, priority=priority),
        prompt=[0] * prompt,
        budget=8,
        submitted_at=0.0,
        stop_ids=frozenset(),
        detokenizer=NoText(),
        text=StopText(()),
    )


def admit_all(scheduler: Scheduler) -> list[RequestState]:
    return [scheduler.admit() for _ in range(min(len(scheduler.waiting), len(scheduler.free)))]


def names(requests: list[RequestState]) -> list[str]:
    return [request.id for request in requests]


def test_rows_go_in_order_of_arrival_lowest_first() -> None:
    scheduler = Scheduler(3)
    for name in range(5):
        scheduler.add(sequence(name))
    admitted = admit_all(scheduler)
    assert [(one.id, one.row) for one in admitted] == [("0", 0), ("1", 1), ("2", 2)]
    assert scheduler.free == []
    scheduler.release(admitted[2])
    scheduler.release(admitted[0])
    assert scheduler.free == [0, 2]
    assert [(one.id, one.row) for one in admit_all(scheduler)] == [("3", 0), ("4", 2)]
    assert not scheduler.waiting


def test_a_row_may_be_chosen() -> None:
    scheduler = Scheduler(3)
    scheduler.add(sequence(0))
    assert scheduler.admit(2).row == 2
    assert scheduler.free == [0, 1]


def test_the_higher_priority_waits_in_front() -> None:
    scheduler = Scheduler(1)
    for name, priority in enumerate((0, 5, -1, 5, 0)):
        scheduler.add(sequence(name, priority=priority))
    assert names(scheduler.waiting) == ["1", "3", "0", "4", "2"]
    scheduler.withdraw(scheduler.waiting[2])
    assert names(scheduler.waiting) == ["1", "3", "4", "2"]


def test_who_gives_way() -> None:
    scheduler = Scheduler(3)
    for name, priority in enumerate((0, 1, 0)):
        scheduler.add(sequence(name, priority=priority))
    assert scheduler.victim() is None, "rows are free"
    admit_all(scheduler)
    assert scheduler.victim() is None, "nobody waits"
    scheduler.add(sequence(3))
    assert scheduler.victim() is None, "an equal gives way to nobody"
    scheduler.add(sequence(4, priority=1))
    victim = scheduler.victim()
    assert victim is not None
    assert victim.id == "2", "the lowest priority, and of these the latest"
    victim.seated, victim.prefilled, victim.cached = True, 4, 3
    row = victim.row
    scheduler.preempt(victim)
    assert scheduler.free == [row]
    assert (victim.row, victim.seated, victim.prefilled, victim.cached, victim.preemptions) == (-1, False, 0, 0, 1)
    assert names(scheduler.waiting) == ["4", "2", "3"], "behind the higher priority, ahead of whom it came before"
    assert scheduler.admit().id == "4"
    assert scheduler.victim() is None


def test_who_is_read_and_who_decodes() -> None:
    scheduler = Scheduler(4)
    long, short, later = sequence(0, prompt=9), sequence(1), sequence(2, prompt=5)
    for one in (long, short, later):
        scheduler.add(one)
    admit_all(scheduler)
    assert scheduler.unseated() == [long, short, later]
    assert scheduler.prefilling() == []
    for one in (long, short, later):
        one.seated = True
    assert names(scheduler.prefilling()) == ["0", "2"]
    assert names(scheduler.decoding()) == ["1"]
    long.prefilled = 8
    assert names(scheduler.prefilling()) == ["2"]
    assert names(scheduler.decoding()) == ["0", "1"]
    scheduler.release(short)
    scheduler.add(sequence(3, prompt=3))
    scheduler.admit().seated = True
    assert names(scheduler.prefilling()) == ["2", "3"], "the newcomer in row 1 waits for the older"
    scheduler.add(sequence(4, prompt=3, priority=1))
    scheduler.admit().seated = True
    assert names(scheduler.prefilling()) == ["4", "2", "3"], "unless it has a higher priority"


def test_what_has_been_emitted_is_read_again() -> None:
    request = sequence(0, prompt=3)
    request.tokens = [1, 2, 3, 4]
    request.seated, request.resumed, request.prefilled = True, 4, 2
    assert not request.decoding
    request.prefilled = request.goal
    assert request.goal == 6
    assert request.decoding
    request.tokens.append(5)
    assert request.decoding, "its goal is fixed when it takes its row"


def test_rank() -> None:
    first, second = sequence(0, priority=1), sequence(1)
    scheduler = Scheduler(1)
    for one in (first, second):
        scheduler.add(one)
    assert rank(first) < rank(second)
