"""Which draft tokens stand, and what follows them.

The drafter's distribution q is dense (`[B, G, V]`), or None where it is one-hot on each draft token (copied text). A
row verifies the first `verified` of its draft tokens, a number known before any of them was drawn.

Shapes: B batch bucket, G = γ draft tokens, W = γ + 1, N packed tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampling.distribution import choose


def count_accepted(stands_BG: Tensor, verified_B: Tensor) -> Tensor:
    """Length of the leading run of accepted tokens among the verified ones `[B]`."""
    step_G = torch.arange(stands_BG.shape[1], device=stands_BG.device)
    return (stands_BG & (step_G < verified_B.unsqueeze(1))).cumprod(1).sum(1)


def verify_greedy(target_N: Tensor, grid_BW: Tensor, drafts_BG: Tensor, verified_B: Tensor) -> tuple[Tensor, Tensor]:
    """All rows greedy: a draft token stands where it is the target's own choice.

    Returns accepted `[B]` and the emitted tokens `[B, W]`, of which the first accepted + 1 count.
    """
    target_BW = target_N[grid_BW]
    return count_accepted(drafts_BG == target_BW[:, :-1], verified_B), target_BW


def verify_standard(
    probs_NV: Tensor,
    grid_BW: Tensor,
    drafts_BG: Tensor,
    verified_B: Tensor,
    accept_BG: Tensor,
    choose_B: Tensor,
    q_BGV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rejection sampling, token by token (Leviathan et al. 2023).

    Draft token x stands with probability min(1, p(x) / q(x)); after a rejection the next token comes from
    max(p - q, 0), renormalised, and after the last draft token from p. `accept_BG` and `choose_B` are uniforms.
    Returns as `verify_greedy`.
    """
    p_BG = probs_NV[grid_BW[:, :-1], drafts_BG]
    accepted_B = count_accepted(accept_BG * _draft_probs(drafts_BG, q_BGV) < p_BG, verified_B)
    share_B1 = torch.ones_like(accepted_B, dtype=probs_NV.dtype).unsqueeze(1)
    return accepted_B, emit(probs_NV, grid_BW, drafts_BG, verified_B, accepted_B, share_B1, choose_B, q_BGV)


def verify_block(
    probs_NV: Tensor,
    grid_BW: Tensor,
    drafts_BG: Tensor,
    verified_B: Tensor,
    accept_BG: Tensor,
    choose_B: Tensor,
    q_BGV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Block verification (Sun et al. 2024): the longest prefix that stands as a whole, never shorter on average.

    With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), prefix i < γ stands with probability S_i / (S_i + 1 - w_i),
    where S_i is the mass of max(w_i p - q, 0) after it, and all γ tokens with probability w_γ. The next token comes
    from max(w p - q, 0), renormalised, or from p after all γ. Takes and returns what `verify_standard` does; γ ≥ 1.
    """
    p_BGV = probs_NV[grid_BW[:, :-1]]
    p_BG = p_BGV.gather(2, drafts_BG.unsqueeze(2)).squeeze(2)
    share_BW = _shares(p_BG / _draft_probs(drafts_BG, q_BGV))
    before_BG, after_BG = share_BW[:, :-1], share_BW[:, 1:]
    if q_BGV is None:
        surplus_BG = before_BG * (1 - p_BG)
    else:
        surplus_BG = (before_BG.unsqueeze(2) * p_BGV - q_BGV).clamp(min=0).sum(-1)
    surplus_BG = torch.cat([surplus_BG[:, 1:], torch.zeros_like(surplus_BG[:, :1])], 1)  # S_1 ... S_γ
    whole_BG = surplus_BG + 1 - after_BG
    length_G = torch.arange(1, drafts_BG.shape[1] + 1, device=drafts_BG.device)
    verified_B1 = verified_B.unsqueeze(1)
    chance_BG = torch.where(whole_BG > 0, surplus_BG / whole_BG, 1.0)
    chance_BG = torch.where(length_G == verified_B1, after_BG, chance_BG)
    stands_BG = (accept_BG < chance_BG) & (length_G <= verified_B1)
    accepted_B = (stands_BG * length_G).amax(1)
    share_B1 = share_BW.gather(1, accepted_B.unsqueeze(1))
    return accepted_B, emit(probs_NV, grid_BW, drafts_BG, verified_B, accepted_B, share_B1, choose_B, q_BGV)


def _draft_probs(drafts_BG: Tensor, q_BGV: Tensor | None) -> Tensor | float:
    return 1.0 if q_BGV is None else q_BGV.gather(2, drafts_BG.unsqueeze(2)).squeeze(2)


def _shares(ratio_BG: Tensor) -> Tensor:
    """w_0 ... w_γ `[B, W]` from the ratios p(x) / q(x)."""
    shares = [torch.ones_like(ratio_BG[:, 0])]
    for ratio_B in ratio_BG.unbind(1):
        shares.append((shares[-1] * ratio_B).clamp(max=1))
    return torch.stack(shares, 1)


def emit(
    probs_NV: Tensor,
    grid_BW: Tensor,
    drafts_BG: Tensor,
    verified_B: Tensor,
    accepted_B: Tensor,
    share_B1: Tensor,
    choose_B: Tensor,
    q_BGV: Tensor | None,
) -> Tensor:
    """The accepted draft tokens and the one after them `[B, W]`: from max(share · p - q, 0) where one was rejected.

    `q_BGV` is what the drafter gave to each token, or of that the part that was let stand.
    """
    place_B1 = accepted_B.unsqueeze(1)
    p_BV = probs_NV.index_select(0, grid_BW.gather(1, place_B1).squeeze(1))
    padded_BW = torch.cat([drafts_BG, drafts_BG.new_zeros((drafts_BG.shape[0], 1))], 1)
    if q_BGV is None:
        q_BV = torch.zeros_like(p_BV).scatter(1, padded_BW.gather(1, place_B1), 1.0)
    else:
        row_B = torch.arange(drafts_BG.shape[0], device=drafts_BG.device)
        q_BV = q_BGV[row_B, accepted_B.clamp(max=drafts_BG.shape[1] - 1)]
    residual_BV = (share_B1 * p_BV - q_BV).clamp(min=0)
    # Where p and q differ by rounding alone, a rejection can find no mass left.
    redraw_B1 = (accepted_B < verified_B).unsqueeze(1) & (residual_BV.sum(1, keepdim=True) > 0)
    next_B = choose(torch.where(redraw_B1, residual_BV, p_BV), choose_B)
    return padded_BW.scatter(1, place_B1, next_B.unsqueeze(1))
