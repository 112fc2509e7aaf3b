from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import RowState
from engine.drafters import NgramDrafter

CAPACITY = 40
histories = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=5)


def brute_force(history: list[int], min_match: int, max_match: int, gamma: int) -> tuple[int, list[int]]:
    """Match length and draft: the longest earlier copy of the newest tokens, the most recent of equals, continued."""
    newest = len(history) - 1

    def matches(end: int) -> int:
        run = 0
        while run < max_match and end - run >= 0 and history[end - run] == history[newest - run]:
            run += 1
        return run

    length, end = max(((matches(end), end) for end in range(newest)), default=(0, 0))
    if length < min_match:
        return 0, []
    text = list(history)
    period = newest - end
    for _ in range(gamma):
        text.append(text[-period])
    return length, text[len(history) :]


def propose(drafter: NgramDrafter, rows: list[list[int]], context: int) -> list[tuple[int, list[int]]]:
    state = RowState(len(rows), CAPACITY, drafter.max_gamma, "cpu")
    state.history_RP.fill_(1)  # what lies beyond a history must not matter
    for row, history in enumerate(rows):
        state.history_RP[row, : len(history)] = torch.tensor(history)
        state.lens_R[row] = len(history)
    drafter.propose(state, len(rows), context)
    lengths = state.draft_lens_R.tolist()
    assert set(lengths) <= {0, drafter.max_gamma}
    drafts = [state.drafts_RM[row, : lengths[row]].tolist() for row in range(len(rows))]
    return list(zip(state.match_lens_R.tolist(), drafts, strict=False))[: len(rows)]


@given(
    rows=histories,
    min_match=st.integers(1, 3),
    extra=st.integers(0, 5),
    gamma=st.integers(1, 7),
    context=st.integers(24, CAPACITY),
)
def test_proposals_equal_brute_force(
    rows: list[list[int]], min_match: int, extra: int, gamma: int, context: int
) -> None:
    drafter = NgramDrafter(gamma, min_match, min_match + extra)
    expected = [brute_force(history, min_match, min_match + extra, gamma) for history in rows]
    assert propose(drafter, rows, context) == expected


@given(rows=histories)
def test_rows_are_independent(rows: list[list[int]]) -> None:
    drafter = NgramDrafter(4, 1)
    together = propose(drafter, rows, CAPACITY)
    assert together == [propose(drafter, [history], CAPACITY)[0] for history in rows]


def test_a_text_with_a_period_is_continued_for_as_long_as_asked() -> None:
    assert propose(NgramDrafter(7), [[5, 6, 7, 5, 6, 7, 5]], 16) == [(4, [6, 7, 5, 6, 7, 5, 6])]
    assert propose(NgramDrafter(3, 1), [[4, 4]], 16) == [(1, [4, 4, 4])]


def test_longer_beats_newer_and_newer_beats_older() -> None:
    assert propose(NgramDrafter(1), [[1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 16) == [(3, [9])]
    assert propose(NgramDrafter(1), [[2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 16) == [(2, [8])]


def test_beyond_max_match_longer_is_not_better() -> None:
    assert propose(NgramDrafter(1, 2, 2), [[1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 16) == [(2, [8])]


def test_a_row_that_does_not_decode_may_be_longer_than_the_context() -> None:
    short, long = [5, 6, 5], list(range(30))
    assert propose(NgramDrafter(2, 1), [long, short], 16)[1] == (1, [6, 5])


def test_impossible_match_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match=3 and max_match=2 must satisfy 1 <= min <= max"):
        NgramDrafter(4, 3, 2)


def test_caps() -> None:
    caps = NgramDrafter(6).caps
    assert (caps.kind, caps.max_gamma, caps.signals) == ("ngram", 6, frozenset({"match_len", "target_entropy"}))
