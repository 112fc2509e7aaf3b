"""Attention on a CPU, run by run, against the padded grid that a recorded step takes."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from engine.attention import PackedAttention, causal_mask, ragged
from engine.attention.ragged import CALL, READ, Run, cut
from engine.kv import KVCache
from engine.layout import PackedLayout, lay_out
from tests.engine.tiny import TINY

CAPACITY, CONTEXT, WIDTH = 24, 20, 4
GROUPS = TINY.num_heads // TINY.num_kv_heads
Row = tuple[int, int]
"""Tokens in the step, and tokens in the cache before them."""

row = st.tuples(st.integers(0, WIDTH), st.integers(0, CONTEXT - WIDTH))
rows = st.lists(row, min_size=1, max_size=6)


# --- where rows are cut ----------------------------------------------------------------------------------------------


def cost(runs: list[Run]) -> int:
    return sum(CALL + (run.last - run.first) * run.context * (READ + run.width) for run in runs)


def every_cut(counts: list[int], seen: list[int]) -> list[list[Run]]:
    """Of rows that all have tokens."""
    found = []
    for breaks in product([False, True], repeat=len(counts) - 1):
        edges = [0, *(place + 1 for place, broken in enumerate(breaks) if broken), len(counts)]
        spans = list(pairwise(edges))
        found.append([Run(a, b, max(counts[a:b]), max(seen[a:b])) for a, b in spans])
    return found


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2000)), min_size=1, max_size=7))
def test_no_cut_is_cheaper(lengths: list[Row]) -> None:
    counts, seen = [count for count, _ in lengths], [keys for _, keys in lengths]
    found = cut(counts, seen)
    assert found in every_cut(counts, seen)
    assert cost(found) == min(map(cost, every_cut(counts, seen)))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2000)), max_size=9))
def test_every_row_with_tokens_is_in_one_run_and_no_other_row_in_any(lengths: list[Row]) -> None:
    runs = cut([count for count, _ in lengths], [keys for _, keys in lengths])
    inside = [place for run in runs for place in range(run.first, run.last)]
    assert inside == [place for place, (count, _) in enumerate(lengths) if count]


def test_one_long_row_is_cut_off_and_small_differences_are_not() -> None:
    assert cut([8, 1, 1, 1], [512] * 4) == [Run(0, 1, 8, 512), Run(1, 4, 1, 512)]
    assert cut([8, 8, 7, 8], [512] * 4) == [Run(0, 4, 8, 512)]
    assert cut([1, 1, 1], [1000, 100, 100]) == [Run(0, 1, 1, 1000), Run(1, 3, 1, 100)]
    assert cut([0, 1, 0, 1, 0], [9] * 5) == [Run(1, 2, 1, 9), Run(3, 4, 1, 9)]


# --- what comes out --------------------------------------------------------------------------------------------------


class Step:
    """One layer's inputs; a row outside the cache has its tokens in the trash slot."""

    def __init__(self, lengths: list[Row], window: int | None, padding: int = 0, lost: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        counts, past = torch.tensor(lengths).t()
        self.kv = KVCache.allocate(TINY, len(lengths), CAPACITY, torch.float64, "cpu")
        for half in (*self.kv.keys, *self.kv.values):
            half.normal_(generator=generator)
        self.tokens = int(counts.sum())
        layout = lay_out(counts, WIDTH, max(1, self.tokens + padding), len(lengths))
        self.layout: PackedLayout = layout
        real_N = layout.row_N < len(lengths)
        position_N = torch.where(real_N, past[layout.row_N.clamp(max=len(lengths) - 1)] + layout.offset_N, 0)
        kept_N = real_N if lost is None else real_N & (layout.row_N != lost)
        self.slots_N = torch.where(kept_N, layout.row_N * CAPACITY + position_N, self.kv.trash_slot)
        self.mask = causal_mask(position_N[layout.grid_BW], CONTEXT, window, GROUPS, torch.float64)
        shapes = [(len(position_N), heads, TINY.head_dim) for heads in (TINY.num_heads, 2, 2)]
        self.qkv = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    def attention(self) -> PackedAttention:
        return PackedAttention(self.kv, self.slots_N, self.layout.grid_BW, self.layout.place_N, self.mask)

    def on_grid(self) -> Tensor:
        attention = self.attention()
        attention.runs = None
        return attention(0, *self.qkv)


@settings(deadline=None)
@given(lengths=rows, window=st.sampled_from([None, 3]), padding=st.integers(0, 3))
def test_runs_equal_the_grid(lengths: list[Row], window: int | None, padding: int) -> None:
    step = Step(lengths, window, padding)
    expected, found = step.on_grid(), step.attention()(0, *step.qkv)
    assert found.shape == expected.shape
    torch.testing.assert_close(found[: step.tokens], expected[: step.tokens], atol=1e-12, rtol=0)
    assert not found[step.tokens :].any()


@pytest.mark.parametrize("apart", [False, True])
def test_runs_equal_the_grid_wherever_rows_are_cut(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At these sizes a cut never pays; without a price it always does."""
    if apart:
        monkeypatch.setattr(ragged, "CALL", 0)
    step = Step([(4, 3), (1, 9), (2, 0), (0, 5), (3, 12)], None)
    attention = step.attention()
    assert attention.runs is not None
    assert len(attention.runs) == (4 if apart else 2)
    assert [run.start for run in attention.runs] == ([0, 4, 5, 7] if apart else [None, 7])
    torch.testing.assert_close(attention(0, *step.qkv), step.on_grid(), atol=1e-12, rtol=0)


def test_nothing_past_what_rows_hold_is_read() -> None:
    step = Step([(2, 3), (1, 6)], None)
    expected = step.attention()(0, *step.qkv)
    for half in (*step.kv.keys, *step.kv.values):
        by_row = half[:, :-1].view(half.shape[0], 2, CAPACITY, -1)
        by_row[:, :, 7:] = float("nan")
    assert torch.equal(step.attention()(0, *step.qkv), expected)


def test_a_row_without_a_slot_of_its_own_is_left_out() -> None:
    lengths = [(2, 3), (1, 6), (2, 1)]
    step, whole = Step(lengths, None, lost=1), Step(lengths, None)
    found, expected = step.attention()(0, *step.qkv), whole.attention()(0, *whole.qkv)
    assert not found[2].any()
    torch.testing.assert_close(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]], atol=1e-12, rtol=0)


def test_a_recorded_step_takes_the_grid() -> None:
    step = Step([(2, 3), (1, 6)], None)
    assert step.attention().runs is not None
    with FlopCounterMode(display=False):
        assert step.attention().runs is None
    assert not ragged.may_look(torch.zeros(1, device="meta"))
