from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import RowState
from engine.layout import pack

ROWS, MAX_GAMMA = 5, 6


@dataclass(frozen=True)
class Row:
    live: bool
    drafts: int
    cap: int
    budget: int

    def verified(self, gamma: int) -> int:
        return max(0, min(self.drafts, self.cap, self.budget - 1, gamma)) if self.live else 0


row = st.builds(
    Row,
    live=st.booleans(),
    drafts=st.integers(0, MAX_GAMMA),
    cap=st.sampled_from([0, MAX_GAMMA]),
    budget=st.integers(1, MAX_GAMMA + 3),
)


def state_of(rows: list[Row], gamma: int) -> RowState:
    state = RowState(ROWS, 32, MAX_GAMMA, "cpu")
    for place, given_row in enumerate(rows):
        state.live_R[place] = given_row.live
        state.draft_lens_R[place] = given_row.drafts
        state.draft_cap_R[place] = given_row.cap
        state.budget_R[place] = given_row.budget
    state.verify_lens_R[: len(rows)] = state.available(len(rows)).clamp(max=gamma)
    return state


@given(
    rows=st.lists(row, min_size=1, max_size=ROWS),
    gamma=st.integers(0, MAX_GAMMA),
    padding=st.integers(0, 9),
)
def test_pack_equals_a_loop(rows: list[Row], gamma: int, padding: int) -> None:
    packed = [(b, k) for b, one in enumerate(rows) if one.live for k in range(one.verified(gamma) + 1)]
    tokens = max(1, len(packed) + padding)
    layout = pack(state_of(rows, gamma), len(rows), gamma, tokens)
    assert layout.verified_B.tolist() == [one.verified(gamma) for one in rows]
    trash = [(ROWS, 0)] * (tokens - len(packed))
    assert list(zip(layout.row_N.tolist(), layout.offset_N.tolist(), strict=True)) == packed + trash
    assert layout.grid_BW.shape == (len(rows), gamma + 1)
    assert ((layout.grid_BW >= 0) & (layout.grid_BW < tokens)).all(), "even unused places can be read"
    for b, one in enumerate(rows):
        last = one.verified(gamma)
        if one.live:
            expected = [packed.index((b, min(k, last))) for k in range(gamma + 1)]
            assert layout.grid_BW[b].tolist() == expected
    flat = layout.grid_BW.flatten()
    assert ((layout.place_N >= 0) & (layout.place_N < len(flat))).all()
    assert flat[layout.place_N][: len(packed)].tolist() == list(range(len(packed))), "place inverts grid"


def test_an_example_with_a_hole() -> None:
    rows = [Row(True, 3, 6, 9), Row(False, 6, 6, 9), Row(True, 6, 0, 9), Row(True, 6, 6, 2)]
    layout = pack(state_of(rows, 2), batch=4, gamma=2, tokens=8)
    assert layout.row_N.tolist() == [0, 0, 0, 2, 3, 3, ROWS, ROWS]
    assert layout.offset_N.tolist() == [0, 1, 2, 0, 0, 1, 0, 0]
    assert layout.grid_BW[[0, 2, 3]].tolist() == [[0, 1, 2], [3, 3, 3], [4, 5, 5]]
    assert torch.equal(layout.verified_B, torch.tensor([2, 0, 0, 1]))
