"""Who gets the verify budget: a total of packed tokens per batch, split over the rows on the device.

**Why this changes no distribution.** The split is that of a heap: each row offers the first of its draft tokens that is
not yet in, the offer of the highest score is taken, until the budget is spent. A row's scores never rise with the
position, so taking the highest scores of all at once, as one sort does, takes the same tokens. The score of position k
is made of the draft distributions at 1 ... k, and those follow from the tokens before k. Whenever the heap looks at an
offer, all tokens before it in its row are in already. So whether a token is verified depends on tokens that are
verified as well, in its row and in those that share the budget, and on draft distributions; never on its own draw or
on a later one. A score taken from the drawn token's own probability would break this.

Shapes: B batch bucket, G = γ.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import Tensor

from adaptive.contract import Signal
from engine.batch import RowState
from engine.control import CONFIDENCE_SIGNALS


def verify_lens(state: RowState, batch: int, gamma: int, names: Set[Signal]) -> Tensor:
    """Draft tokens that each row verifies `[B]`: what is there, within its own limit and its share of the budget."""
    control = state.control
    open_B = torch.minimum(state.available(batch).clamp(max=gamma), control.limit_R[:batch])
    spare_1 = control.budget_1 - state.live_R[:batch].sum()
    score_BG = scores(survival(state, batch, gamma, names), control.target_R[:batch])
    return split(score_BG, open_B, spare_1)


def survival(state: RowState, batch: int, gamma: int, names: Set[Signal]) -> Tensor:
    """The chance that draft token k and all before it stand, as the policy's weights tell it from signals `[B, G]`.

    The product of sigmoid(weight · signal + bias) over the positions up to k. Without weights that is 2^-k: all rows'
    first tokens come before anyone's second.
    """
    control = state.control
    weight_SG = control.weight_SM[:, :gamma]
    logit_BG = control.bias_M[:gamma] + weight_SG[-1] * state.match_lens_R[:batch].unsqueeze(1)
    for place, name in enumerate(CONFIDENCE_SIGNALS[:-1]):
        if name in names:
            logit_BG = logit_BG + weight_SG[place] * state.signals_SRM[place, :batch, :gamma]
    return logit_BG.sigmoid().cumprod(1)


def scores(survival_BG: Tensor, target_B: Tensor) -> Tensor:
    """Survival, but above 1 as long as a row's tokens before this one are not expected to reach its target `[B, G]`.

    What is missing to the target counts the bonus token, and the row that misses most comes first.
    """
    before_BG = survival_BG.cumsum(1)[:, :-1]
    before_BG = torch.cat([torch.zeros_like(survival_BG[:, :1]), before_BG], 1)
    missing_BG = target_B.unsqueeze(1) - 1 - before_BG
    return torch.where(missing_BG > 0, 1 + missing_BG, survival_BG)


def split(score_BG: Tensor, open_B: Tensor, spare_1: Tensor) -> Tensor:
    """How many of its first `open_B` tokens each row gets when the `spare_1` highest scores are taken `[B]`.

    Scores are positive and never rise along a row. Equal ones go by position, then by row.
    """
    batch, gamma = score_BG.shape
    place_G = torch.arange(gamma, device=score_BG.device)
    open_BG = place_G < open_B.unsqueeze(1)
    by_place_X = torch.where(open_BG, score_BG, -1.0).t().flatten()
    order_X = by_place_X.sort(descending=True, stable=True).indices
    rank_X = torch.zeros_like(order_X).scatter(0, order_X, torch.arange(batch * gamma, device=order_X.device))
    return (open_BG & (rank_X.view(gamma, batch).t() < spare_1)).sum(1)
