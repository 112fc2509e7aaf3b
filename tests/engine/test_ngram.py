"""Drafting by copying against a plain search of the text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters import NgramDrafter
from engine.graphs.base import store
from tests.engine.plain_lookup import continued, look_up, run_back

CAPACITY = 40
ROOMY = 1 << 14  # so many cells that nothing is overwritten
texts = st.lists(st.integers(0, 3), min_size=1, max_size=24)
histories = st.lists(texts, min_size=1, max_size=5)


class Rows:
    """A drafter over rows that are written by hand."""

    def __init__(
        self, count: int, gamma: int, min_match: int = 2, max_match: int = 8, cells: int | None = ROOMY
    ) -> None:
        config = EngineConfig(max_batch=count, context_len=CAPACITY, max_gamma=gamma)
        self.drafter = NgramDrafter(config, min_match=min_match, max_match=max_match, cells=cells)
        self.state = RowState(count, CAPACITY, gamma, "cpu")
        self.state.history_RP.fill_(1)  # what lies beyond a history must not matter

    def set(self, row: int, history: list[int]) -> None:
        self.state.history_RP[row, : len(history)] = torch.tensor(history)
        self.state.lens_R[row] = len(history)

    def index(self, row: int, width: int) -> None:
        """Take in a whole row, chunk by chunk."""
        for start in range(0, int(self.state.lens_R[row]), width):
            self.drafter.aim(store, row, start)
            self.drafter.take_in(self.state, width)

    def propose(self, count: int) -> list[tuple[int, list[int]]]:
        """Match length and drafts of the first rows."""
        self.drafter.propose(self.state, count)
        lengths = self.state.draft_lens_R.tolist()
        assert set(lengths) <= {0, self.drafter.caps.max_gamma}
        drafts = [self.state.drafts_RM[row, : lengths[row]].tolist() for row in range(count)]
        return list(zip(self.state.match_lens_R.tolist(), drafts, strict=False))


def propose(
    rows: list[list[int]], gamma: int, min_match: int = 2, max_match: int = 8, width: int = 16
) -> list[tuple[int, list[int]]]:
    made = Rows(len(rows), gamma, min_match, max_match)
    for row, history in enumerate(rows):
        made.set(row, history)
        made.index(row, width)
    return made.propose(len(rows))


@given(
    rows=histories,
    min_match=st.integers(1, 3),
    extra=st.integers(0, 5),
    gamma=st.integers(1, 7),
    width=st.integers(1, 30),
)
def test_proposals_equal_a_plain_search(
    rows: list[list[int]], min_match: int, extra: int, gamma: int, width: int
) -> None:
    expected = [look_up(history, min_match, min_match + extra, gamma) for history in rows]
    assert propose(rows, gamma, min_match, min_match + extra, width) == expected


@given(rows=histories)
def test_rows_are_independent(rows: list[list[int]]) -> None:
    assert propose(rows, 4, 1) == [propose([history], 4, 1)[0] for history in rows]


@given(text=st.lists(st.integers(0, 2), min_size=2, max_size=CAPACITY), gamma=st.integers(1, 5), data=st.data())
def test_a_text_that_grows_by_what_a_step_emits_needs_no_other_indexing(
    text: list[int], gamma: int, data: st.DataObject
) -> None:
    rows, length = Rows(2, gamma, 1), 1
    rows.set(1, [2, 1, 0])
    while length <= len(text):
        rows.set(0, text[:length])
        assert rows.propose(2)[0] == look_up(text[:length], 1, 8, gamma)
        length += data.draw(st.integers(1, gamma + 1))


@given(first=texts, second=texts)
def test_a_row_taken_over_knows_nothing_of_the_one_before(first: list[int], second: list[int]) -> None:
    rows = Rows(2, 3, 1)
    for history in (first, second):
        rows.drafter.admit(store, 1)
        rows.set(1, history)
        rows.index(1, 8)
        assert rows.propose(2)[1] == look_up(history, 1, 8, 3)


def is_true_match(history: list[int], found: tuple[int, list[int]]) -> bool:
    """Whether some earlier place matches in just so many tokens and goes on as drafted."""
    length, draft = found
    ends = [end for end in range(len(history) - 1) if run_back(history, end, 8) == length]
    return (length == 0 and not draft) or any(continued(history, end, len(draft)) == draft for end in ends)


@given(rows=histories, cells=st.sampled_from([2, 4, 8]))
def test_overwritten_entries_lose_matches_and_make_none_up(rows: list[list[int]], cells: int) -> None:
    made = Rows(len(rows), 3, cells=cells)
    for row, history in enumerate(rows):
        made.set(row, history)
        made.index(row, 16)
    for history, found in zip(rows, made.propose(len(rows)), strict=True):
        assert is_true_match(history, found)
        assert found[0] <= look_up(history, 2, 8, 3)[0]


def test_overwriting_happens_in_small_tables() -> None:
    history = [5, 6, *range(7, 37), 5, 6]
    lost, kept = Rows(1, 2, 2, 2, cells=2), Rows(1, 2, 2, 2)
    for rows in (lost, kept):
        rows.set(0, history)
        rows.index(0, 16)
    assert (lost.propose(1), kept.propose(1)) == ([(0, [])], [(2, [7, 8])])


@given(first=texts, second=texts)
def test_stale_entries_that_were_not_cleared_are_seen_through(first: list[int], second: list[int]) -> None:
    rows = Rows(1, 3, 1)
    for history in (first, second):
        rows.set(0, history)
        rows.index(0, 8)
    assert is_true_match(second, rows.propose(1)[0])


def test_a_text_with_a_period_is_continued_for_as_long_as_asked() -> None:
    assert propose([[5, 6, 7, 5, 6, 7, 5]], 7) == [(4, [6, 7, 5, 6, 7, 5, 6])]
    assert propose([[4, 4]], 3, 1) == [(1, [4, 4, 4])]


def test_longer_beats_newer_and_newer_beats_older() -> None:
    assert propose([[1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 1) == [(3, [9])]
    assert propose([[2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 1) == [(2, [8])]


def test_beyond_max_match_longer_is_not_better() -> None:
    assert propose([[1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]], 1, 2, 2) == [(2, [8])]


def test_what_lies_before_the_window_is_found_once_it_is_taken_in() -> None:
    rows = Rows(1, 1)
    rows.set(0, [1, 2, 3, *range(10, 20), 1, 2])
    assert rows.propose(1) == [(0, [])]
    rows.index(0, 4)
    assert rows.propose(1) == [(2, [3])]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match=3 and max_match=2 must satisfy 1 <= min <= max"):
        Rows(1, 4, 3, 2)
    with pytest.raises(ValueError, match="cells=12 must be a power of two"):
        Rows(1, 4, cells=12)


def test_caps() -> None:
    caps = Rows(1, 6).drafter.caps
    assert (caps.kind, caps.max_gamma, caps.signals) == ("ngram", 6, frozenset({"match_len", "target_entropy"}))
