"""Verification by rules that are not exact: equal to rejection sampling where they contain it, metered elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import qmc
from torch import Tensor

from adaptive.contract import AcceptanceKind
from engine.control import MAX_PARAMS
from engine.sampling.lossy import Drawn, Told, Verdict, strayed, verify_lossy
from engine.sampling.rules import POINTS, RULES
from engine.sampling.verify import verify_standard
from engine.signals import js_distance

KIND = AcceptanceKind
EXACT_AT = {
    KIND.THRESHOLD: (1.0, 1.0),
    KIND.DIVERGENCE: (0.0, 0.0, 1.0),
    KIND.MENTORED: (0.0,),
    KIND.CACTUS: (0.0,),
    KIND.FLY: (1.2, 2.0),
}
LOOSE = {
    KIND.TYPICAL: (0.05, 0.3),
    KIND.THRESHOLD: (0.4, 0.6),
    KIND.JS: (1e-4, 0.5),
    KIND.DIVERGENCE: (0.3, 0.0, 0.0),
    KIND.MENTORED: (0.4,),
    KIND.CACTUS: (0.3,),
    KIND.FLY: (0.2, 1.0),
}
ROWS, GAMMA, VOCAB = 64, 4, 6


def one_hot(tokens: Tensor) -> Tensor:
    return torch.zeros((*tokens.shape, VOCAB), dtype=torch.float64).scatter(-1, tokens.unsqueeze(-1), 1.0)


def situation(seed: int, copied: bool = False, sampled: bool = True) -> Drawn:
    """Every third row is greedy (all, unless `sampled`), every other row allows lossy rules, lengths differ."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    row_B = torch.arange(ROWS)
    greedy_B = row_B % 3 == 0 if sampled else row_B >= 0
    logits_NV = 3 * rand(ROWS * (GAMMA + 1), VOCAB)
    grid_BW = torch.arange(len(logits_NV)).view(ROWS, GAMMA + 1)
    probs_NV = logits_NV.softmax(-1)
    greedy_N1 = greedy_B.repeat_interleave(GAMMA + 1).unsqueeze(1)
    probs_NV = torch.where(greedy_N1, one_hot(logits_NV.argmax(-1)), probs_NV)
    q_BGV = (logits_NV[grid_BW[:, :-1]] + 2 * rand(ROWS, GAMMA, VOCAB)).softmax(-1)
    drafts_BG = (q_BGV.log() - (-rand(ROWS, GAMMA, VOCAB).log()).log()).argmax(-1)
    drafts_BG = torch.where(greedy_B.unsqueeze(1), q_BGV.argmax(-1), drafts_BG)
    q_BGV = torch.where(greedy_B.view(-1, 1, 1), one_hot(drafts_BG), q_BGV)
    return Drawn(
        logits_NV=logits_NV,
        probs_NV=probs_NV,
        grid_BW=grid_BW,
        drafts_BG=drafts_BG,
        verified_B=torch.where(row_B % 5 == 0, row_B % (GAMMA + 1), GAMMA),
        q_BGV=None if copied or not sampled else q_BGV,
        greedy_B=greedy_B,
        allow_B=row_B % 2 == 0,
        accept_BG=rand(ROWS, GAMMA),
        choose_B=rand(ROWS),
    )


def told(drawn: Drawn, params: Sequence[float], table: Sequence[float] | None = None) -> Told:
    batch = len(drawn.choose_B)
    planes = torch.zeros((MAX_PARAMS, batch), dtype=torch.float64)
    planes[: len(params)] = torch.tensor(params, dtype=torch.float64).unsqueeze(1)
    planes[-1] = table is not None
    plain_BGV = drawn.logits_NV.softmax(-1)[drawn.grid_BW[:, :-1]]
    q_BGV = plain_BGV.roll(1, -1) if drawn.q_BGV is None else drawn.q_BGV
    tables = torch.tensor([table or [0.0] * POINTS], dtype=torch.float64).expand(batch, -1)
    return Told(planes, tables, q_BGV, js_distance(plain_BGV, q_BGV))


def exactly(drawn: Drawn) -> tuple[Tensor, Tensor]:
    return verify_standard(
        drawn.probs_NV,
        drawn.grid_BW,
        drawn.drafts_BG,
        drawn.verified_B,
        drawn.accept_BG,
        drawn.choose_B,
        drawn.q_BGV,
    )


def differs(verdict: Verdict, drawn: Drawn) -> Tensor:
    """Which rows accept or emit something else than rejection sampling with the same numbers `[B]`."""
    accepted_B, emitted_BW = exactly(drawn)
    counts_BW = torch.arange(GAMMA + 1) <= accepted_B.unsqueeze(1)
    return (verdict.accepted_B != accepted_B) | ((verdict.emitted_BW != emitted_BW) & counts_BW).any(1)


@pytest.mark.parametrize(
    ("copied", "sampled"), [(False, True), (True, True), (False, False)], ids=["dense", "copied", "greedy"]
)
@pytest.mark.parametrize("kind", EXACT_AT)
def test_rules_that_contain_rejection_sampling_are_it_to_the_bit(
    kind: AcceptanceKind, copied: bool, sampled: bool
) -> None:
    for seed in range(4):
        drawn = situation(seed, copied, sampled)
        verdict = verify_lossy(RULES[kind], drawn, told(drawn, EXACT_AT[kind]))
        assert not differs(verdict, drawn).any()
        assert not verdict.lossy_B.any()
        assert verdict.spent_B.max() < 1e-12


@pytest.mark.parametrize("copied", [False, True], ids=["dense", "copied"])
@pytest.mark.parametrize("kind", LOOSE)
def test_rows_that_do_not_allow_it_are_judged_exactly(kind: AcceptanceKind, copied: bool) -> None:
    changed = 0
    for seed in range(4):
        drawn = situation(seed, copied)
        verdict = verify_lossy(RULES[kind], drawn, told(drawn, LOOSE[kind]))
        different_B = differs(verdict, drawn)
        assert not (different_B & ~drawn.allow_B).any()
        assert not verdict.lossy_B[~drawn.allow_B].any()
        assert not verdict.spent_B[~drawn.allow_B].any()
        changed += int(different_B.sum())
        assert (verdict.lossy_B <= verdict.accepted_B).all()
        assert (verdict.accepted_B <= drawn.verified_B).all()
    assert changed > 5, "the rows that allow it are judged otherwise"


# --- the law of what comes out ---------------------------------------------------------------------------------------

UNIFORMS = torch.from_numpy(qmc.Sobol(2, seed=0).random_base2(12))
P = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0, 0.0], dtype=torch.float64)
Q = torch.tensor([0.1, 0.2, 0.5, 0.1, 0.1, 0.0], dtype=torch.float64)


def law(
    kind: AcceptanceKind, params: Sequence[float], q: Tensor = Q, table: Sequence[float] | None = None
) -> tuple[Tensor, float, float]:
    """Of one token, over all drafts and coins `[V]`; the mean spent, and the mean accepted beyond the exact rule."""
    rows, out, spent, lossy = len(UNIFORMS), torch.zeros(VOCAB, dtype=torch.float64), 0.0, 0.0
    for token in range(VOCAB):
        drawn = Drawn(
            logits_NV=P.log().expand(2, -1),
            probs_NV=P.expand(2, -1),
            grid_BW=torch.tensor([[0, 1]]).expand(rows, -1),
            drafts_BG=torch.full((rows, 1), token),
            verified_B=torch.ones(rows, dtype=torch.int64),
            q_BGV=q.expand(rows, 1, -1),
            greedy_B=torch.zeros(rows, dtype=torch.bool),
            allow_B=torch.ones(rows, dtype=torch.bool),
            accept_BG=UNIFORMS[:, :1],
            choose_B=UNIFORMS[:, 1],
        )
        verdict = verify_lossy(RULES[kind], drawn, told(drawn, params, table))
        out += q[token] * torch.bincount(verdict.emitted_BW[:, 0], minlength=VOCAB) / rows
        spent += float(q[token] * verdict.spent_B.mean())
        lossy += float(q[token] * verdict.lossy_B.double().mean())
    return out, spent, lossy


LINE = [1 - place / (POINTS - 1) for place in range(POINTS)]


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        # kept: q where p > .25, so (.1, .2, 0, 0, 0, 0); .7 is missing, shared as p - kept = (.4, .1, .2, ...) is, so
        # that all of p comes out: with so few kept nothing exceeds p
        (KIND.TYPICAL, (1.0, 0.7), [0.5, 0.3, 0.2, 0, 0, 0]),
        # kept: (.1, .2, .5, 0, 0, 0), since all three are likely enough; .2 is missing: (.4, .1) · .2 / .5 = (.16, .04)
        (KIND.TYPICAL, (0.05, 0.3), [0.26, 0.24, 0.5, 0, 0, 0]),
        # p / .8 = (.625, .375, .25): kept (.1, .2, .25); .45 is missing: (.4, .1) · .9 = (.36, .09)
        (KIND.THRESHOLD, (1.0, 0.8), [0.46, 0.29, 0.25, 0, 0, 0]),
        # p ≥ .2 stands: as for typical above
        (KIND.THRESHOLD, (0.2, 1.0), [0.26, 0.24, 0.5, 0, 0, 0]),
        # all stands that p can say: as above
        (KIND.JS, (1e-4, 2.0), [0.26, 0.24, 0.5, 0, 0, 0]),
        (KIND.DIVERGENCE, (1.1, 0.0, 0.0), [0.26, 0.24, 0.5, 0, 0, 0]),
        # nothing stands: the target's own
        (KIND.JS, (1e-4, 0.0), [0.5, 0.3, 0.2, 0, 0, 0]),
        (KIND.DIVERGENCE, (0.0, 0.0, 0.0), [0.5, 0.3, 0.2, 0, 0, 0]),
        # p / .8 again
        (KIND.MENTORED, (0.2,), [0.46, 0.29, 0.25, 0, 0, 0]),
        # .2 + √(.04 · .16) = .28: kept (.1, .2, .28); .42 is missing: (.4, .1) · .84 = (.336, .084)
        (KIND.CACTUS, (0.02,), [0.436, 0.284, 0.28, 0, 0, 0]),
    ],
)
def test_the_law_that_comes_out_and_what_it_costs(
    kind: AcceptanceKind, params: Sequence[float], expected: list[float]
) -> None:
    """One token, p = (.5, .3, .2) and q = (.1, .2, .5, .1, .1)."""
    out, spent, lossy = law(kind, params)
    assert out.tolist() == pytest.approx(expected, abs=3e-3)
    total_variation = float((torch.tensor(expected, dtype=torch.float64) - P).abs().sum()) / 2
    assert spent == pytest.approx(total_variation, abs=1e-9)
    # Where more stands than p allows, each token beyond the exact rule is a piece of the same distance.
    assert lossy == pytest.approx(total_variation, abs=3e-3)


def test_a_table_keeps_a_share_of_the_draft() -> None:
    """q may stand up to π: kept is π · q where p allows it, and what is missing comes from the rest of p."""
    distance = float(js_distance(P, Q))
    share = 1 - distance
    kept = [0.1 * share, 0.2 * share, 0.5 * share, 0, 0, 0]
    assert kept[2] > 0.2, "or the case is dull"
    missing, left = 1 - sum(kept), [0.5 - kept[0], 0.3 - kept[1]]
    expected = [kept[0] + missing * left[0] / sum(left), kept[1] + missing * left[1] / sum(left), kept[2], 0, 0, 0]
    out, spent, _ = law(KIND.JS, (1e-4, 0.0), table=LINE)
    assert out.tolist() == pytest.approx(expected, abs=3e-3)
    assert spent == pytest.approx(kept[2] - 0.2, abs=1e-9)


def test_mentored_keeps_within_its_divergence() -> None:
    """KL(out‖p) ≤ -ln(1 - α), here -ln .8 = .2231 nats: .46 ln .92 + .29 ln .9667 + .25 ln 1.25 = .0076."""
    out = law(KIND.MENTORED, (0.2,))[0][:3]
    assert float((out * (out / P[:3]).log()).sum()) == pytest.approx(0.0076, abs=3e-3)
    assert -math.log(0.8) == pytest.approx(0.2231, abs=1e-4)


def test_strayed_is_nothing_where_all_that_is_missing_is_made_up() -> None:
    kept = torch.tensor([[[0.1, 0.2, 0.2, 0, 0, 0]]], dtype=torch.float64)
    assert strayed(P.view(1, 1, -1), kept).item() == pytest.approx(0, abs=1e-12)
    assert strayed(P.view(1, 1, -1), P.view(1, 1, -1)).item() == pytest.approx(0, abs=1e-12)


# --- greedy rows -----------------------------------------------------------------------------------------------------


def greedy(tokens: list[int], kind: AcceptanceKind, params: Sequence[float]) -> Verdict:
    """A row whose target at temperature 1 is (.5, .3, .2) in every place, and drafts `tokens`."""
    count = len(tokens)
    drawn = Drawn(
        logits_NV=P.clamp(min=1e-12).log().expand(count + 1, -1),
        probs_NV=one_hot(torch.zeros(count + 1, dtype=torch.int64)),
        grid_BW=torch.arange(count + 1).unsqueeze(0),
        drafts_BG=torch.tensor([tokens]),
        verified_B=torch.tensor([count]),
        q_BGV=None,
        greedy_B=torch.tensor([True]),
        allow_B=torch.tensor([True]),
        accept_BG=torch.full((1, count), 0.999, dtype=torch.float64),
        choose_B=torch.full((1,), 0.999, dtype=torch.float64),
    )
    return verify_lossy(RULES[kind], drawn, told(drawn, params))


def test_on_a_greedy_row_a_miss_may_stand_and_costs_what_the_target_gave_up() -> None:
    # p > .25 stands, so 0 and 1 do and 2 does not; token 1 costs .5 - .3 = .2
    verdict = greedy([0, 1, 1, 2, 0], KIND.TYPICAL, (1.0, 0.7))
    assert verdict.accepted_B.tolist() == [3]
    assert verdict.emitted_BW[0, :4].tolist() == [0, 1, 1, 0], "after the rejection comes the most likely token"
    assert verdict.lossy_B.tolist() == [2]
    assert verdict.spent_B.item() == pytest.approx(0.4, abs=1e-9)


@pytest.mark.parametrize("kind", [KIND.MENTORED, KIND.CACTUS])
def test_ratios_do_not_relax_a_greedy_row(kind: AcceptanceKind) -> None:
    verdict = greedy([0, 0, 1], kind, (0.9,))
    assert (verdict.accepted_B.item(), verdict.lossy_B.item(), verdict.spent_B.item()) == (2, 0, 0)
    assert verdict.emitted_BW[0, :3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("kind", "params"), [(KIND.JS, (1e-4, 0.0)), (KIND.TYPICAL, (1.0, 1e9))])
def test_the_targets_own_token_stands_on_a_greedy_row_whatever_the_rule(
    kind: AcceptanceKind, params: Sequence[float]
) -> None:
    """Refused, it would be said all the same, and the tokens after it would be lost."""
    verdict = greedy([0, 0, 0], kind, params)
    assert (verdict.accepted_B.item(), verdict.lossy_B.item(), verdict.spent_B.item()) == (3, 0, 0)
