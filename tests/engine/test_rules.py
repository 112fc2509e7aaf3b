"""Every acceptance rule against numbers worked out by hand.

The target has p = (.5, .3, .2) and the drafter q = (.2, .2, .6) unless said otherwise; tokens 0, 1, 2.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind
from engine.control import MAX_PARAMS
from engine.sampling.rules import (
    POINTS,
    RULES,
    Cactus,
    Case,
    Divergence,
    Fly,
    JensenShannon,
    Mentored,
    Rule,
    Threshold,
    Typical,
)
from engine.sampling.rules.fly import fits_again
from engine.sampling.rules.js import interpolate

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
INF = math.inf


def wide(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1)


def masses(
    rule: Rule,
    *params: float,
    p: list[float] = P,
    q: list[float] = Q,
    seen: list[float] | None = None,
    distance: float | None = None,
    table: list[float] | None = None,
) -> list[float]:
    """m(x) of one row and place. `seen` is what a greedy row looks at instead of its one-hot p."""
    planes = torch.zeros((MAX_PARAMS, 1), dtype=torch.float64)
    planes[: len(params), 0] = torch.tensor(params, dtype=torch.float64)
    planes[-1] = table is not None
    case = Case(
        drafts_BG=torch.zeros((1, 1), dtype=torch.int64),
        verified_B=torch.ones(1, dtype=torch.int64),
        p_BGV=wide(p),
        q_BGV=wide(q),
        seen_BGV=wide(seen or p),
        target_BGV=wide(seen or p),
        exact_BG=torch.zeros((1, 1), dtype=torch.bool),
        params_KB=planes,
        table_BT=torch.tensor([table or [0.0] * POINTS], dtype=torch.float64),
        draft_BGV=wide(q),
        distance_BG=None if distance is None else torch.tensor([[distance]], dtype=torch.float64),
    )
    found: list[float] = rule.mass(case)[0, 0].tolist()
    return found


def test_typical() -> None:
    # H = .5 ln 2 + .3 ln 3.333 + .2 ln 5 = .3466 + .3612 + .3219 = 1.0297; δ e^-H = .3 · .3571 = .1071 > ε = .09.
    assert masses(Typical(), 0.09, 0.3) == [INF, INF, INF]
    # With ε = 1 it is δ that decides: .7 · .3571 = .25, .9 · .3571 = .3214.
    assert masses(Typical(), 1.0, 0.7) == [INF, INF, 0]
    assert masses(Typical(), 1.0, 0.9) == [INF, 0, 0]
    # A sure target, p = (.98, .01, .01): H = .0198 + 2 · .0461 = .1119, δ e^-H = .3 · .894 = .268, so ε = .09 decides.
    assert masses(Typical(), 0.09, 0.3, p=[0.98, 0.01, 0.01]) == [INF, 0, 0]
    assert masses(Typical(), 0.005, 0.3, p=[0.98, 0.01, 0.01]) == [INF, INF, INF]


def test_the_limits_of_typical() -> None:
    """Nothing is likelier than 1; and with ε = 0 whatever has any probability stands."""
    assert masses(Typical(), 1.0, 1e9) == [0, 0, 0]
    assert masses(Typical(), 0.0, 0.3, p=[0.5, 0.5, 0.0]) == [INF, INF, 0]


def test_threshold() -> None:
    # p(0) = .5 reaches .5 and stands; the others may stand up to p / .8 = .375 and .25
    assert masses(Threshold(), 0.5, 0.8) == pytest.approx([INF, 0.375, 0.25])
    assert masses(Threshold(), 1.0, 1.0) == P, "rejection sampling"
    # a floor of 1e-9, as in SGLang: no division by 0, and no more than 1
    assert masses(Threshold(), 1.0, 0.0)[2] == pytest.approx(0.2e9)
    assert masses(Threshold(), 1.0, 7.0) == P


def test_js_version_1() -> None:
    # the paper's example: means .15 and .49 put the threshold at .32
    assert masses(JensenShannon(), 1e-4, 0.32, distance=0.31) == Q
    assert masses(JensenShannon(), 1e-4, 0.32, distance=0.32) == [0, 0, 0]
    assert masses(JensenShannon(), 0.25, 0.32, distance=0.31) == [0.2, 0.2, 0], "p(2) = .2 is not above ε = .25"
    assert masses(JensenShannon(), 1e-4, 0.32, p=[0.5, 0.5, 0.0], distance=0.0) == [0.2, 0.2, 0]


def test_js_version_2_reads_a_table() -> None:
    # P(A|d) falls from 1 to 0 along a line: at d = .3 it is .7, so .7 of q stands: (.14, .14, .42)
    line = [1 - place / (POINTS - 1) for place in range(POINTS)]
    found = masses(JensenShannon(), 1e-4, 0.0, distance=0.3, table=line)
    assert found == pytest.approx([0.14, 0.14, 0.42])
    assert masses(JensenShannon(), 0.2, 0.0, distance=0.3, table=line) == pytest.approx([0.14, 0.14, 0])


def test_tables_are_read_linearly_between_their_points() -> None:
    # three points at 0, .5 and 1; d = .25 is half way from 1 to .4, d = .9 is 4/5 of the way from .4 to 0
    table = torch.tensor([[1.0, 0.4, 0.0]], dtype=torch.float64)
    distance = torch.tensor([[0.0, 0.25, 0.5, 0.9, 1.0]], dtype=torch.float64)
    assert interpolate(table, distance)[0].tolist() == pytest.approx([1.0, 0.7, 0.4, 0.08, 0.0])


def test_divergence_measures() -> None:
    # JS is the distance squared: d = .3 gives .09
    assert masses(Divergence(), 0.0901, 0, distance=0.3) == [INF, INF, INF]
    assert masses(Divergence(), 0.0899, 0, distance=0.3) == [0, 0, 0]
    # KL(p‖q) = .5 ln 2.5 + .3 ln 1.5 + .2 ln .3333 = .4581 + .1216 - .2197 = .3600 nats
    assert masses(Divergence(), 0.361, 1, distance=1.0) == [INF, INF, INF]
    assert masses(Divergence(), 0.359, 1, distance=0.0) == [0, 0, 0]
    # TV = (.3 + .1 + .4) / 2 = .4
    assert masses(Divergence(), 0.401, 2, distance=1.0) == [INF, INF, INF]
    assert masses(Divergence(), 0.399, 2, distance=0.0) == [0, 0, 0]


def test_divergence_falls_back_on_the_target_or_on_the_exact_rule() -> None:
    assert masses(Divergence(), 0.0, 0, 0, distance=0.0) == [0, 0, 0]
    assert masses(Divergence(), 0.0, 0, 1, distance=0.0) == P
    assert masses(Divergence(), 1.0, 0, 1, p=[0.5, 0.5, 0.0], distance=0.1) == [INF, INF, 0], "never what p can not say"
    greedy = masses(Divergence(), 1.0, 0, p=[1.0, 0.0, 0.0], seen=P, distance=0.1)
    assert greedy == [INF, INF, INF], "a greedy row looks at temperature 1"


def test_mentored() -> None:
    # 1 / (1 - .2) = 1.25 times p
    assert masses(Mentored(), 0.2) == pytest.approx([0.625, 0.375, 0.25])
    assert masses(Mentored(), 0.0) == P


def test_cactus() -> None:
    # α = .02: .5 + √(.04 · .25) = .6; .3 + √(.04 · .21) = .3917; .2 + √(.04 · .16) = .28
    assert masses(Cactus(), 0.02) == pytest.approx([0.6, 0.391652, 0.28], abs=1e-6)
    # α = 2: .5 + √(4 · .25) = 1.5, which is cut to 1; a token that p can not say stays so
    assert masses(Cactus(), 2.0, p=[0.5, 0.5, 0.0]) == [1, 1, 0]
    assert masses(Cactus(), 0.0) == P


def test_fly_forgives_where_gate_and_window_open() -> None:
    """Places 0 to 4, of which the exact rule refuses 0 and 3; all are verified but in the last row."""
    exact = torch.tensor([[False, True, True, False, True]]).expand(3, -1)
    verified = torch.tensor([5, 5, 2])
    window = torch.tensor([2.0, 3.0, 2.0])
    # row 0: after 0 come two that stand; after 1 come 2 and 3, of which 3 falls; after 3 only one is left.
    # row 1: after 0 come three, the third falls; row 2: after 0 come two, of which only one is verified.
    assert fits_again(exact, verified, window).tolist() == [
        [True, False, False, False, False],
        [False] * 5,
        [False] * 5,
    ]


def test_the_window_of_fly_is_cut_to_what_a_draft_can_hold() -> None:
    exact = torch.tensor([[False, True, True]])
    assert fits_again(exact, torch.tensor([3]), torch.tensor([6.0])).tolist() == [[True, False, False]]
    alone = fits_again(torch.tensor([[False]]), torch.tensor([1]), torch.tensor([6.0]))
    assert alone.tolist() == [[False]], "a draft of one token has nothing after it"


def fly_masses(entropy: float, p: list[float]) -> list[list[float]]:
    """Of a draft of two, refused at the first and not at the second."""
    planes = torch.zeros((MAX_PARAMS, 1), dtype=torch.float64)
    planes[:2, 0] = torch.tensor([entropy, 1.0])
    both = wide(p).expand(1, 2, -1)
    case = Case(
        drafts_BG=torch.zeros((1, 2), dtype=torch.int64),
        verified_B=torch.tensor([2]),
        p_BGV=both,
        q_BGV=both,
        seen_BGV=both,
        target_BGV=both,
        exact_BG=torch.tensor([[False, True]]),
        params_KB=planes,
        table_BT=torch.zeros((1, POINTS), dtype=torch.float64),
    )
    found: list[list[float]] = Fly().mass(case)[0].tolist()
    return found


def test_the_gate_of_fly_is_the_entropy_of_three() -> None:
    # p = (.4, .3, .2, .1, 0): .4 ln 2.5 + .3 ln 3.333 + .2 ln 5 = .3665 + .3612 + .3219 = 1.0496 nats
    p = [0.4, 0.3, 0.2, 0.1, 0.0]
    assert fly_masses(1.049, p) == [[INF, INF, INF, INF, 0], p]
    assert fly_masses(1.050, p) == [p, p]


@pytest.mark.parametrize("rule", [Threshold(), Mentored(), Cactus(), Divergence(), Fly()], ids=lambda rule: rule.kind)
def test_a_greedy_rows_own_distribution_leaves_ratios_nothing_to_relax(rule: Rule) -> None:
    """With p one-hot on token 0, these let token 1 stand with no probability, unless they look at temperature 1."""
    params = list(rule.kind.params.values())
    assert masses(rule, *params, p=[1.0, 0.0, 0.0], q=[0.0, 1.0, 0.0], distance=0.9)[1] == 0


def test_every_lossy_kind_has_its_rule_and_nothing_else_does() -> None:
    assert set(RULES) == {kind for kind in AcceptanceKind if not kind.lossless}
    assert all(rule.kind is kind for kind, rule in RULES.items())
