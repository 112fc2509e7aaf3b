"""Which row holds what, on the host alone."""

from __future__ import annotations

from collections.abc import Sequence

from engine.prefix import SHORTEST, PrefixIndex
from engine.request_state import RequestState
from tests.engine.test_scheduler import sequence

ROWS, CAPACITY = 4, 64
LONG = list(range(40))


def holding(contents: dict[int, Sequence[int]], rows: int = ROWS) -> PrefixIndex:
    """Rows whose requests have ended, in the order given; each holds all of its tokens but the last."""
    index = PrefixIndex(rows, CAPACITY, drafts=True)
    for row, tokens in contents.items():
        index.release(occupy(index, row, tokens))
    return index


def occupy(index: PrefixIndex, row: int, tokens: Sequence[int], kept: int = 0) -> RequestState:
    request = sequence(row)
    request.prompt = list(tokens)
    request.row, request.seated = row, True
    index.take(request, kept)
    request.prefilled = request.cached = request.goal
    return request


def test_what_is_shared() -> None:
    index = holding({0: LONG[:21], 2: [*LONG[:30], 7, 7], 3: [9, *LONG]})
    assert index.shared([*LONG, 5]).tolist() == [20, 0, 30, 0]
    assert index.shared(LONG[:21]).tolist() == [20, 0, 20, 0], "the last token is never read from the cache"
    assert index.shared(LONG[:25]).tolist() == [20, 0, 24, 0]
    assert index.shared([9, *LONG[:15]]).tolist() == [0, 0, 0, 15], "short, and all there is"
    assert index.shared([9, *LONG[:15], 50, 51]).tolist() == [0, 0, 0, 16]
    assert index.shared([9, *LONG[:14], 50, 51]).tolist() == [0, 0, 0, 0], f"fewer than {SHORTEST} do not count"
    assert index.shared([0]).tolist() == [0] * ROWS


def test_all_but_the_newest_token_stands() -> None:
    index = PrefixIndex(ROWS, CAPACITY, drafts=True)
    request = occupy(index, 1, LONG[:20])
    request.prefilled = request.cached = 17
    index.follow([request])
    assert (index.held_R[1], index.drafted_R[1]) == (17, 17), "no more than was read"
    request.prefilled = request.goal
    request.tokens += LONG[20:25]
    request.cached = 22
    index.follow([request])
    assert (index.held_R[1], index.drafted_R[1]) == (24, 22)
    request.tokens.append(LONG[25])
    index.release(request)
    assert index.shared([*LONG, 5])[1] == 25


def test_an_unseated_request_tells_nothing() -> None:
    index = holding({0: LONG})
    request = sequence(5)
    request.row = 0
    index.follow([request])
    assert index.held_R[0] == 39


def test_drafts_that_can_not_be_copied_do_not_count() -> None:
    index = PrefixIndex(1, CAPACITY, drafts=False)
    index.release(occupy(index, 0, LONG))
    assert (index.held_R[0], index.drafted_R[0]) == (39, 0)


def test_the_choice_of_a_row() -> None:
    index = holding({0: [50] * 30, 2: LONG[:30], 3: LONG[:30], 1: [60] * 30}, rows=8)
    shared = index.shared([*LONG, 5])
    assert shared.tolist() == [0, 0, 29, 29, 0, 0, 0, 0]
    assert index.choose([0, 1, 2, 3], shared) == 0, "another would need a wider batch"
    assert index.choose([2, 3, 4], shared) == 2
    assert index.choose([3, 4], shared) == 3
    assert index.choose([4, 5, 6, 7], shared) == 4, "never used: the lowest"
    none = index.shared([1])
    assert index.choose([2, 3, 4], none) == 2, "used before row 3"
    index.reused(2, 5)
    assert index.choose([2, 3, 4], none) == 3


def test_a_row_that_was_copied_whole_goes_first() -> None:
    index = holding({2: LONG[:30], 3: [7] * 30})
    index.reused(3, 29)
    assert index.choose([2, 3], index.shared([1])) == 3


def test_the_refuge_of_what_would_be_lost() -> None:
    index = holding({3: LONG, 2: [60] * 30, 0: [50] * 30})
    assert index.refuge(0, 0, [1, 2, 3], avoid=None) == 1, "empty"
    assert index.refuge(0, 0, [2, 3], avoid=None) == 3, "used longest ago"
    assert index.refuge(0, 0, [2, 3], avoid=3) == 2
    assert index.refuge(0, 0, [], avoid=None) is None
    assert index.refuge(0, 29, [1, 2, 3], avoid=None) is None, "nothing is lost"
    assert index.refuge(2, 0, [0], avoid=None) is None, "what is there is newer"
    assert index.refuge(1, 0, [2, 3], avoid=None) is None, "there is nothing to save"


def test_copying_a_whole_row() -> None:
    index = holding({3: LONG, 0: [50] * 30})
    index.clear(1)
    index.copied(3, 1)
    assert index.shared([*LONG, 5]).tolist() == [0, 39, 0, 39]
    assert index.drafted_R.tolist() == [29, 39, 0, 39]
    request = occupy(index, 3, [*LONG[:20], 9, 9], kept=20)
    assert (index.held_R[3], index.drafted_R[3]) == (20, 20)
    index.follow([request])
    assert index.shared([*LONG, 5]).tolist() == [0, 39, 0, 20]
