"""Which draft tokens stand, and what follows them.

Shapes: B batch bucket, W = γ + 1, N packed tokens, V vocabulary.
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
    probs_NV: Tensor, grid_BW: Tensor, drafts_BG: Tensor, verified_B: Tensor, accept_BG: Tensor, choose_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Rejection sampling for a drafter whose distribution is one-hot (Leviathan et al. 2023, q = 1 at the draft).

    Draft token x stands with probability p(x); after a rejection the next token comes from p without x, renormalised,
    and after the last draft token from p itself. `accept_BG` and `choose_B` are uniforms. Returns as `verify_greedy`.
    """
    chance_BG = probs_NV[grid_BW[:, :-1], drafts_BG]
    accepted_B = count_accepted(accept_BG < chance_BG, verified_B)
    final_B1 = grid_BW.gather(1, accepted_B.unsqueeze(1))
    residual_BV = probs_NV.index_select(0, final_B1.squeeze(1))
    padded_BW = torch.cat([drafts_BG, drafts_BG.new_zeros((drafts_BG.shape[0], 1))], 1)
    rejected_B1 = padded_BW.gather(1, accepted_B.unsqueeze(1))
    kept_B1 = torch.where((accepted_B < verified_B).unsqueeze(1), 0.0, residual_BV.gather(1, rejected_B1))
    next_B = choose(residual_BV.scatter(1, rejected_B1, kept_B1), choose_B)
    return accepted_B, padded_BW.scatter(1, accepted_B.unsqueeze(1), next_B.unsqueeze(1))
