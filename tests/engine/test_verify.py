from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.verify import verify_greedy, verify_standard

Law = dict[tuple[int, ...], float]


# --- greedy ----------------------------------------------------------------------------------------------------------


def tokens(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2), min_size=count, max_size=count)


@given(rows=st.lists(st.tuples(tokens(4), tokens(3), st.integers(0, 3)), min_size=1, max_size=4))
def test_greedy_equals_a_loop(rows: list[tuple[list[int], list[int], int]]) -> None:
    """Each row is (the target's choices, the drafts, how many are verified)."""
    target = torch.tensor([choice for choices, _, _ in rows for choice in choices])
    grid = torch.arange(4 * len(rows)).view(-1, 4)
    drafts = torch.tensor([drafts for _, drafts, _ in rows])
    accepted, emitted = verify_greedy(target, grid, drafts, torch.tensor([verified for _, _, verified in rows]))
    for place, (choices, drafted, verified) in enumerate(rows):
        expected = 0
        while expected < verified and drafted[expected] == choices[expected]:
            expected += 1
        assert int(accepted[place]) == expected
        assert emitted[place, : expected + 1].tolist() == choices[: expected + 1]


# --- sampled ---------------------------------------------------------------------------------------------------------

# After no, one and two of the draft tokens (2, 0): multiples of 1/20, so that 20 uniforms hit every chance exactly.
TARGET = torch.tensor([[0.30, 0.20, 0.45, 0.05], [0.60, 0.00, 0.15, 0.25], [0.10, 0.70, 0.20, 0.00]])
DRAFTS = (2, 0)


def exact_law(verified: int) -> Law:
    """Chance of each emitted block: the target's own law, stopped at the first token that is not the draft's."""
    law: Law = {}
    reach = 1.0
    for place in range(verified + 1):
        for token, chance in enumerate(TARGET[place].tolist()):
            if place == verified or token != DRAFTS[place]:
                law[(*DRAFTS[:place], token)] = reach * chance
        if place < verified:
            reach *= float(TARGET[place, DRAFTS[place]])
    return law


def counted_law(verified: int, cells: int = 20, choices: int = 300) -> Law:
    """The same by running every combination of evenly spaced uniforms as one row of a batch."""
    unit = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    pick = (torch.arange(choices, dtype=torch.float64) + 0.5) / choices
    first, second, choose = (part.flatten() for part in torch.meshgrid(unit, unit, pick, indexing="ij"))
    rows = len(choose)
    accepted, emitted = verify_standard(
        TARGET,
        torch.arange(3).repeat(rows, 1),
        torch.tensor(DRAFTS).repeat(rows, 1),
        torch.full((rows,), verified),
        torch.stack([first, second], 1),
        choose,
    )
    place = torch.arange(3)
    blocks = torch.where(place <= accepted.unsqueeze(1), emitted, -1)
    unique, counts = blocks.unique(dim=0, return_counts=True)
    named = [tuple(token for token in block if token >= 0) for block in unique.tolist()]
    return dict(zip(named, (counts / rows).tolist(), strict=True))


@pytest.mark.parametrize("verified", [0, 1, 2])
def test_the_emitted_block_follows_the_target(verified: int) -> None:
    exact, counted = exact_law(verified), counted_law(verified)
    assert sum(exact.values()) == pytest.approx(1)
    assert set(counted) == {block for block, chance in exact.items() if chance > 0}
    for block, chance in counted.items():
        assert chance == pytest.approx(exact[block], abs=2 / 300)


def test_rows_of_one_batch_are_judged_apart() -> None:
    """Row 0 is sure of its draft tokens, row 1 of others, row 2 verifies none; they are packed without gaps."""
    sure = torch.eye(4)
    probs = sure[[3, 1, 0, 2, 2, 1]]
    grid = torch.tensor([[0, 1, 2], [3, 4, 4], [5, 5, 5]])
    drafts = torch.tensor([[3, 1], [1, 2], [1, 1]])
    half = torch.full((3, 2), 0.5, dtype=torch.float64)
    accepted, emitted = verify_standard(probs, grid, drafts, torch.tensor([2, 1, 0]), half, half[:, 0])
    assert accepted.tolist() == [2, 0, 0]
    assert emitted[0].tolist() == [3, 1, 0]
    assert [int(emitted[1, 0]), int(emitted[2, 0])] == [2, 1]


def test_plain_decode_draws_from_the_target() -> None:
    pick = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    zeros = torch.zeros((1000, 1), dtype=torch.int64)
    accepted, emitted = verify_standard(TARGET[:1], zeros, zeros[:, :0], zeros[:, 0], zeros[:, :0].double(), pick)
    assert not accepted.any()
    assert (torch.bincount(emitted[:, 0], minlength=4) / 1000).tolist() == pytest.approx(TARGET[0].tolist(), abs=1e-3)
