from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptive.requests import Request
from engine.request_state import NoText, RequestState
from engine.scheduler import Scheduler
from engine.stop import StopText


def sequence(name: int, prompt: int = 1) -> RequestState:
    return RequestState(
        id=str(name),
        request=Request([0] * prompt),
        prompt=[0] * prompt,
        budget=8,
        submitted_at=0.0,
        stop_ids=frozenset(),
        detokenizer=NoText(),
        text=StopText(()),
    )


def test_rows_go_in_order_of_arrival_lowest_first() -> None:
    scheduler = Scheduler(3)
    for name in range(5):
        scheduler.add(sequence(name))
    admitted = scheduler.admit()
    assert [(one.id, one.row) for one in admitted] == [("0", 0), ("1", 1), ("2", 2)]
    assert scheduler.admit() == []
    scheduler.release(admitted[2])
    scheduler.release(admitted[0])
    assert [(one.id, one.row) for one in scheduler.admit()] == [("3", 0), ("4", 2)]
    assert not scheduler.waiting


def test_who_is_read_and_who_decodes() -> None:
    scheduler = Scheduler(4)
    long, short, later = sequence(0, prompt=9), sequence(1), sequence(2, prompt=5)
    for one in (long, short, later):
        scheduler.add(one)
    scheduler.admit()
    assert scheduler.unseated() == [long, short, later]
    assert scheduler.prefilling() == []
    for one in (long, short, later):
        one.seated = True
    assert [one.id for one in scheduler.prefilling()] == ["0", "2"]
    assert [one.id for one in scheduler.decoding()] == ["1"]
    long.prefilled = 8
    assert [one.id for one in scheduler.prefilling()] == ["2"]
    assert [one.id for one in scheduler.decoding()] == ["0", "1"]
    scheduler.release(short)
    scheduler.add(sequence(3, prompt=3))
    scheduler.admit()[0].seated = True
    assert [one.id for one in scheduler.prefilling()] == ["2", "3"], "the newcomer in row 1 waits for the older"


@given(rows=st.integers(1, 4), moves=st.lists(st.sampled_from(["add", "admit", "release"]), max_size=60))
def test_no_row_leaks_and_nobody_overtakes(rows: int, moves: list[str]) -> None:
    scheduler, added, seated = Scheduler(rows), 0, []
    for move in moves:
        if move == "add":
            scheduler.add(sequence(added))
            added += 1
        elif move == "admit":
            seated += [one.id for one in scheduler.admit()]
        elif scheduler.running:
            scheduler.release(scheduler.running[max(scheduler.running)])
        assert set(scheduler.running) <= set(range(rows))
        assert all(row == one.row for row, one in scheduler.running.items())
    while not scheduler.idle:
        seated += [one.id for one in scheduler.admit()]
        for one in list(scheduler.running.values()):
            scheduler.release(one)
    assert seated == [str(name) for name in range(added)]
    for name in range(rows):
        scheduler.add(sequence(name))
    assert [one.row for one in scheduler.admit()] == list(range(rows)), "all rows are free again"
