"""Verification by a rule that is not exact, on the rows that allow one, and what it costs.

With the rule's mass m (`engine/sampling/rules/base.py`), min(q, m) of the drafter's probability is *kept*. What is
drawn after a rejection makes up for what is missing, max(p - kept, 0) renormalised: of all that could be drawn there
this leaves the least distance to the target. On other rows m = p: the very same operations are rejection sampling.

Shapes: B batch bucket, G = γ, W = γ + 1, N packed tokens, V vocabulary, T points of a table, K parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.rules import Case, Rule
from engine.sampling.verify import count_accepted, emit


@dataclass(frozen=True, slots=True)
class Drawn:
    """What verification goes by. `greedy_B` and `allow_B` are truth values, the last three uniforms and their place.

    `q_BGV` None stands for one-hot on each draft token; it is so on greedy rows in any case.
    """

    logits_NV: Tensor
    probs_NV: Tensor
    grid_BW: Tensor
    drafts_BG: Tensor
    verified_B: Tensor
    q_BGV: Tensor | None
    greedy_B: Tensor
    allow_B: Tensor
    accept_BG: Tensor
    choose_B: Tensor


@dataclass(frozen=True, slots=True)
class Told:
    """What the rule goes by besides: its parameters, and of both models at temperature 1 what its `needs` brought."""

    params_KB: Tensor
    table_BT: Tensor
    draft_BGV: Tensor | None = None
    distance_BG: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted `[B]`, emitted `[B, W]` (the first accepted + 1 count), and the meters `[B]`, 0 on rows that allow none.

    `lossy_B` of the accepted tokens would have fallen by the exact rule and the same coins. `spent_B` sums, over the
    tokens judged, the total variation between what the rule draws there and the target: the distributions of
    answers differ by no more than its mean, if mass depends on no later draft token (FLy's does). On greedy rows, where
    that is 1 for each such token, it is the probability that the target at temperature 1 gave to its own token above
    that of the one that stands.
    """

    accepted_B: Tensor
    emitted_BW: Tensor
    lossy_B: Tensor
    spent_B: Tensor


def verify_lossy(rule: Rule, drawn: Drawn, told: Told) -> Verdict:
    """Judge by `rule` where it is allowed, exactly elsewhere; with the same numbers as `verify_standard`."""
    case, coin_BG = _case(drawn, told)
    allow_B11 = drawn.allow_B.unsqueeze(1).unsqueeze(2)
    greedy_B11 = drawn.greedy_B.unsqueeze(1).unsqueeze(2)
    mass_BGV = rule.mass(case)
    # What a greedy row would say itself stands: were it refused, it would be said all the same.
    mass_BGV = torch.where(greedy_B11, torch.maximum(mass_BGV, case.p_BGV), mass_BGV)
    mass_BGV = torch.where(allow_B11, mass_BGV, case.p_BGV)
    kept_BGV = torch.minimum(case.q_BGV, mass_BGV)
    stands_BG = coin_BG < _of(mass_BGV, drawn.drafts_BG)
    accepted_B = count_accepted(stands_BG, drawn.verified_B)
    share_B1 = torch.ones_like(drawn.choose_B, dtype=drawn.probs_NV.dtype).unsqueeze(1)
    emitted_BW = emit(
        drawn.probs_NV,
        drawn.grid_BW,
        drawn.drafts_BG,
        drawn.verified_B,
        accepted_B,
        share_B1,
        drawn.choose_B,
        kept_BGV,
    )
    beyond_BG = stands_BG & ~case.exact_BG & drawn.allow_B.unsqueeze(1)
    spent_BG = torch.where(drawn.greedy_B.unsqueeze(1), beyond_BG * _given_up(case), strayed(case.p_BGV, kept_BGV))
    place_G = torch.arange(stands_BG.shape[1], device=stands_BG.device)
    stood_BG = place_G < accepted_B.unsqueeze(1)
    judged_BG = (place_G <= accepted_B.unsqueeze(1)) & (place_G < drawn.verified_B.unsqueeze(1))
    spent_B = torch.where(drawn.allow_B, (judged_BG * spent_BG).sum(1), 0.0)
    return Verdict(accepted_B, emitted_BW, (beyond_BG & stood_BG).sum(1), spent_B)


def _case(drawn: Drawn, told: Told) -> tuple[Case, Tensor]:
    """Also each draft token's coin, u · q(x), which mass has to exceed."""
    judge_BG = drawn.grid_BW[:, :-1]
    p_BGV = drawn.probs_NV[judge_BG]
    target_BGV = drawn.logits_NV.softmax(-1)[judge_BG]
    q_BGV = drawn.q_BGV
    if q_BGV is None:
        q_BGV = torch.zeros_like(p_BGV).scatter(2, drawn.drafts_BG.unsqueeze(2), 1.0)
    coin_BG = drawn.accept_BG * _of(q_BGV, drawn.drafts_BG)
    case = Case(
        drafts_BG=drawn.drafts_BG,
        verified_B=drawn.verified_B,
        p_BGV=p_BGV,
        q_BGV=q_BGV,
        seen_BGV=torch.where(drawn.greedy_B.unsqueeze(1).unsqueeze(2), target_BGV, p_BGV),
        target_BGV=target_BGV,
        exact_BG=coin_BG < _of(p_BGV, drawn.drafts_BG),
        params_KB=told.params_KB,
        table_BT=told.table_BT,
        draft_BGV=told.draft_BGV,
        distance_BG=told.distance_BG,
    )
    return case, coin_BG


def _of(weights_BGV: Tensor, tokens_BG: Tensor) -> Tensor:
    return weights_BGV.gather(2, tokens_BG.unsqueeze(2)).squeeze(2)


def strayed(p_BGV: Tensor, kept_BGV: Tensor) -> Tensor:
    """Total variation between p and what comes out where `kept` of a draft token's probability stands `[B, G]`."""
    missing_BGV = (p_BGV - kept_BGV).clamp(min=0)
    total_BG1 = missing_BGV.sum(-1, keepdim=True)
    redrawn_BGV = torch.where(total_BG1 > 0, missing_BGV / torch.where(total_BG1 > 0, total_BG1, 1.0), p_BGV)
    out_BGV = kept_BGV + (1 - kept_BGV.sum(-1, keepdim=True)).clamp(min=0) * redrawn_BGV
    return (out_BGV - p_BGV).abs().sum(-1) / 2


def _given_up(case: Case) -> Tensor:
    """How much likelier the target's own token is than the draft token, at temperature 1 `[B, G]`."""
    return case.target_BGV.amax(-1) - _of(case.target_BGV, case.drafts_BG)
