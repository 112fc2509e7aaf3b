"""The lossless rules and the signals on numbers small enough to work out: tokens A, B, C are 0, 1, 2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampling.distribution import choose
from engine.sampling.tree import walk
from engine.sampling.verify import verify_block, verify_greedy, verify_standard
from engine.signals import entropy_bits, js_distance
from engine.tree_links import link

A, B, C = 0, 1, 2


def wide(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


Rule = Callable[..., tuple[Tensor, Tensor]]


def judged(
    rule: Rule, p: Tensor, q: Tensor | None, drafts: tuple[int, ...], uniforms: tuple[float, ...], pick: float = 0.5
) -> list[int]:
    """What one row emits."""
    gamma = len(drafts)
    q_BGV = None if q is None else q.unsqueeze(0)
    accepted, emitted = rule(
        p,
        torch.arange(gamma + 1).unsqueeze(0),
        torch.tensor([drafts]),
        torch.tensor([gamma]),
        wide(uniforms),
        wide(pick),
        q_BGV,
    )
    tokens: list[int] = emitted[0, : int(accepted) + 1].tolist()
    return tokens


# --- rejection sampling --------------------------------------------------------------------------------------------

P = wide([0.7, 0.3], [0.2, 0.8])
Q = wide([0.9, 0.1])


def test_standard_accepts_with_p_over_q() -> None:
    # A stands with probability .7 / .9 = .7778; then the bonus comes from (.2, .8)
    assert judged(verify_standard, P, Q, (A,), (0.777,)) == [A, B]
    # refused: max(p - q, 0) = (0, .2), so B whatever is drawn
    for pick in (0.01, 0.99):
        assert judged(verify_standard, P, Q, (A,), (0.778,), pick) == [B]
    # B has p / q = .3 / .1 = 3 and always stands
    assert judged(verify_standard, P, Q, (B,), (0.999,)) == [B, B]


def test_standard_against_copied_text_accepts_with_p() -> None:
    p = wide([0.5, 0.3, 0.2], [0.0, 0.0, 1.0])
    # q is one-hot on A: it stands with probability .5; refused, p without A is (.3, .2), of which B has .6
    assert judged(verify_standard, p, None, (A,), (0.499,)) == [A, C]
    assert judged(verify_standard, p, None, (A,), (0.501,), 0.599) == [B]
    assert judged(verify_standard, p, None, (A,), (0.501,), 0.601) == [C]


def test_greedy_accepts_the_most_likely_token_alone() -> None:
    # the target's choices are B, A, C; the draft says B, C: one stands, and A follows
    accepted, emitted = verify_greedy(
        torch.tensor([B, A, C]), torch.tensor([[0, 1, 2]]), torch.tensor([[B, C]]), torch.tensor([2])
    )
    assert (int(accepted), emitted[0, :2].tolist()) == (1, [B, A])


# --- block verification --------------------------------------------------------------------------------------------

BLOCK_P = wide([0.25, 0.75], [0.6, 0.4], [1.0, 0.0])
BLOCK_Q = wide([0.5, 0.5], [0.2, 0.8])


def test_block_verification_of_a_prefix() -> None:
    # draft A, B: w1 = .25 / .5 = .5; w2 = .5 · .4 / .8 = .25 = h2
    # S1 = max(.5 · .6 - .2, 0) + max(.5 · .4 - .8, 0) = .1; h1 = .1 / (.1 + 1 - .5) = .16667
    # after one token: max(.5 · p - q, 0) = (.1, 0), so A; after none: max(p - q, 0) = (0, .25), so B
    for uniforms, emitted in (
        ((0.166, 0.251), [A, A]),
        ((0.167, 0.251), [B]),
        ((0.999, 0.249), [A, B, A]),
        ((0.166, 0.249), [A, B, A]),
    ):
        assert judged(verify_block, BLOCK_P, BLOCK_Q, (A, B), uniforms) == emitted


def test_block_verification_makes_an_early_token_good() -> None:
    # draft A, A: w1 = .5, w2 = min(.5 · .6 / .2, 1) = 1: both stand, though alone the first would fall half the time
    assert judged(verify_block, BLOCK_P, BLOCK_Q, (A, A), (0.999, 0.999)) == [A, A, A]
    assert judged(verify_standard, BLOCK_P, BLOCK_Q, (A, A), (0.999, 0.999)) == [B]


def test_block_verification_against_copied_text() -> None:
    # draft A, A, one-hot: w1 = .25, w2 = .25 · .6 = .15 = h2; S1 = w1 · (1 - .6) = .1; h1 = .1 / (.1 + .75) = .11765
    # after one token: max(.25 · p - one-hot A, 0) = (0, .1), so B
    for uniforms, emitted in (
        ((0.117, 0.151), [A, B]),
        ((0.118, 0.151), [B]),
        ((0.118, 0.149), [A, A, A]),
    ):
        assert judged(verify_block, BLOCK_P, None, (A, A), uniforms) == emitted


def test_one_token_is_judged_alike_by_both() -> None:
    for uniform in (0.777, 0.778):
        assert judged(verify_block, P, Q, (A,), (uniform,)) == judged(verify_standard, P, Q, (A,), (uniform,))


# --- trees ---------------------------------------------------------------------------------------------------------


def walked(first: float, second: float, pick: float) -> tuple[int, int]:
    """Two children of the root, A then B: the node that stands (0: none) and the token after it."""
    probs = wide([0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    links = link(torch.tensor([[-1, -1]]), 1, 2)
    node, left = walk(
        probs, torch.arange(3).unsqueeze(0), torch.tensor([[A, B]]), torch.tensor([2]), wide([first, second]), links
    )
    return int(node), int(choose(left, wide(pick)))


def test_siblings_are_tried_in_turn_on_what_is_left() -> None:
    # A stands with probability .5, after it comes A
    assert walked(0.499, 0.999, 0.5) == (1, A)
    # refused, p without A is (.3, .2) / .5: B stands with probability .6, after it comes B
    assert walked(0.501, 0.599, 0.5) == (2, B)
    # both refused: C is all that is left
    for pick in (0.01, 0.99):
        assert walked(0.501, 0.601, pick) == (0, C)


# --- signals -------------------------------------------------------------------------------------------------------


def test_entropy_is_in_bits() -> None:
    # .5 · 1 + 2 · .25 · 2 = 1.5
    assert entropy_bits(wide(0.5, 0.25, 0.25)).item() == pytest.approx(1.5)


def test_js_distance_is_the_root_of_the_divergence_in_bits() -> None:
    # p = (1, 0), q = (.5, .5), m = (.75, .25): H(m) = .811278, (H(p) + H(q)) / 2 = .5, D = .311278, d = .557923
    assert js_distance(wide(1.0, 0.0), wide(0.5, 0.5)).item() == pytest.approx(0.557923, abs=1e-6)


def test_acceptance_is_one_minus_total_variation() -> None:
    # Σ min(p, q) = .7 + .1 = .8; TV = (|.7 - .9| + |.3 - .1|) / 2 = .2
    unit = (np.arange(1000) + 0.5) / 1000
    stood = sum(
        float(Q[0, token]) * np.mean([judged(verify_standard, P, Q, (token,), (u,))[0] == token for u in unit])
        for token in (A, B)
    )
    assert stood == pytest.approx(0.8, abs=2e-3)
