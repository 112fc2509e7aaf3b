"""One sort hands out the budget as a heap would, and never by a token that was drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.sampling.verify import verify_standard
from engine.split import scores, split
from tests.engine.test_verify_dense import TOLERANCE, UNIFORMS

chance = st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0]) | st.floats(0, 1)


@given(st.data())
def test_the_split_is_a_heaps(data: st.DataObject) -> None:
    batch, gamma = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    chances = data.draw(st.lists(st.lists(chance, min_size=gamma, max_size=gamma), min_size=batch, max_size=batch))
    targets = data.draw(st.lists(st.just(-np.inf) | st.floats(0, 7), min_size=batch, max_size=batch))
    there = data.draw(st.lists(st.integers(0, gamma), min_size=batch, max_size=batch))
    spare = data.draw(st.integers(-1, batch * gamma + 2))
    survival_BG = torch.tensor(chances, dtype=torch.float64).cumprod(1)
    score_BG = scores(survival_BG, torch.tensor(targets, dtype=torch.float64))
    assert (score_BG[:, 1:] <= score_BG[:, :-1]).all(), "never rises along a row"
    assert (score_BG >= 0).all()
    taken = [0] * batch
    for _ in range(max(0, spare)):
        offers = [
            (-float(score_BG[row, taken[row]]), taken[row], row) for row in range(batch) if taken[row] < there[row]
        ]
        if offers:
            taken[min(offers)[2]] += 1
    assert split(score_BG, torch.tensor(there), torch.tensor([spare])).tolist() == taken


def test_a_row_short_of_its_target_comes_first() -> None:
    survival_BG = torch.tensor([[0.9, 0.8, 0.7], [0.5, 0.2, 0.1]], dtype=torch.float64)
    there, spare = torch.tensor([3, 3]), torch.tensor([3])
    assert split(scores(survival_BG, torch.tensor([-np.inf, -np.inf])), there, spare).tolist() == [3, 0]
    assert split(scores(survival_BG, torch.tensor([1.0, 1.4])), there, spare).tolist() == [2, 1]
    assert split(scores(survival_BG, torch.tensor([1.0, 1.6])), there, spare).tolist() == [1, 2]


# --- the law of two rows that share a budget, by enumeration ---------------------------------------------------------

GAMMA, VOCAB, SPARE = 2, 2, 2


def laws(seed: int, depth: int) -> list[Tensor]:
    """A distribution after every text of up to `depth` - 1 tokens `[V, ..., V]`."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.dirichlet(np.ones(VOCAB) * 0.8, (VOCAB,) * place)) for place in range(depth)]


P = [laws(10 + row, GAMMA + 1) for row in (0, 1)]
Q = [laws(20 + row, GAMMA) for row in (0, 1)]
Judge = Callable[[Tensor, int], float]


def by_top_prob(q_V: Tensor, drawn: int) -> float:
    return float(q_V.max())


def by_drawn_prob(q_V: Tensor, drawn: int) -> float:
    return float(q_V[drawn])


def pair_law(judge: Judge) -> Tensor:
    """The joint law of both rows' three tokens `[V] * 6` when `judge` says what a draft token's chance is."""
    law = torch.zeros((VOCAB,) * 6, dtype=torch.float64)
    paths = list(product(range(VOCAB), repeat=GAMMA))
    for pair in product(paths, paths):
        draft_chance = 1.0
        chances = []
        for row, path in enumerate(pair):
            steps = [Q[row][0], Q[row][1][path[0]]]
            draft_chance *= float(steps[0][path[0]] * steps[1][path[1]])
            chances.append([judge(q_V, token) for q_V, token in zip(steps, path, strict=True)])
        survival_BG = torch.tensor(chances, dtype=torch.float64).cumprod(1)
        target_B = torch.full((2,), -np.inf, dtype=torch.float64)
        lens = split(scores(survival_BG, target_B), torch.tensor([GAMMA, GAMMA]), torch.tensor([SPARE])).tolist()
        first, second = (row_law(row, path, lens[row]) for row, path in enumerate(pair))
        law += draft_chance * first.reshape(VOCAB, VOCAB, VOCAB, 1, 1, 1) * second
    return law


def row_law(row: int, path: tuple[int, ...], verified: int) -> Tensor:
    """Of three tokens, once `verified` of the drafted ones are judged and the target has gone on to three."""
    p, q, rows = P[row], Q[row], len(UNIFORMS)
    probs_NV = torch.stack([p[0], p[1][path[0]], p[2][path]])
    q_BGV = torch.stack([q[0], q[1][path[0]]]).expand(rows, -1, -1)
    accepted, emitted = verify_standard(
        probs_NV,
        torch.arange(GAMMA + 1).clamp(max=verified).repeat(rows, 1),
        torch.tensor(path).repeat(rows, 1),
        torch.full((rows,), verified),
        UNIFORMS[:, :GAMMA],
        UNIFORMS[:, 2],
        q_BGV,
    )
    law = torch.zeros((VOCAB,) * 3, dtype=torch.float64)
    for count in range(verified + 1):
        blocks, counts = emitted[accepted == count, : count + 1].unique(dim=0, return_counts=True)
        for block, times in zip(blocks.tolist(), (counts / rows).tolist(), strict=True):
            rest = [p[1][block[0]][:, None] * p[2][block[0]], p[2][tuple(block[:2])], torch.tensor(1.0)][len(block) - 1]
            law[tuple(block)] += times * rest
    return law


def target_law() -> Tensor:
    rows = [P[row][0][:, None, None] * P[row][1][:, :, None] * P[row][2] for row in (0, 1)]
    return rows[0].reshape(VOCAB, VOCAB, VOCAB, 1, 1, 1) * rows[1]


def test_two_rows_that_share_a_budget_keep_their_joint_law() -> None:
    law = pair_law(by_top_prob)
    assert float(law.sum()) == pytest.approx(1)
    assert float((law - target_law()).abs().max()) < TOLERANCE


def test_a_chance_told_from_the_drawn_token_is_caught() -> None:
    assert float((pair_law(by_drawn_prob) - target_law()).abs().max()) > 5 * TOLERANCE


def test_the_known_example_of_the_bias() -> None:
    """p = (.7, .3), q = (.9, .1): dropping the draft when the drawn token's q is below a half emits .77, not .70."""
    p, q = np.array([0.7, 0.3]), np.array([0.9, 0.1])

    def emitted(kept: Callable[[int], bool]) -> float:
        total = 0.0
        for drawn in (0, 1):
            accept = min(1.0, p[drawn] / q[drawn]) if kept(drawn) else 0.0
            residual = np.maximum(p - q, 0)
            redrawn = residual / residual.sum() if kept(drawn) else p
            total += q[drawn] * (accept * (drawn == 0) + (1 - accept) * redrawn[0])
        return total

    assert emitted(lambda drawn: True) == pytest.approx(0.7)
    assert emitted(lambda drawn: bool(q[drawn] >= 0.5)) == pytest.approx(0.77)
