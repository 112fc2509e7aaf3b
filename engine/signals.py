"""Signals: what drafter and target distributions say about a draft token, before and after it is judged.

All are taken at temperature 1 without filters, and leave the device inside the one packed copy. A signal that nobody
asked for is not part of the key, so nothing is computed for it.

Shapes: B batch bucket, N packed tokens, G = γ, W = γ + 1, V vocabulary, S planes of `SIGNALS`, R rows, M largest γ.
"""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch import Tensor

from adaptive.contract import DRAFT_SIGNALS, TARGET_SIGNALS, Signal
from engine.batch import RowState
from engine.control import PASSES_ABOVE

SIGNALS = (*DRAFT_SIGNALS, *TARGET_SIGNALS)


def entropy_bits(probs_V: Tensor) -> Tensor:
    """Shannon entropy over the last dimension, base 2."""
    nats: Tensor = torch.special.entr(probs_V).sum(-1)
    return nats / math.log(2)


def js_distance(p_V: Tensor, q_V: Tensor) -> Tensor:
    """Jensen-Shannon distance over the last dimension: the root of the divergence in base 2, so from 0 to 1."""
    divergence = entropy_bits((p_V + q_V) / 2) - (entropy_bits(p_V) + entropy_bits(q_V)) / 2
    return divergence.clamp(0, 1).sqrt()


def note_draft(state: RowState, batch: int, position: int, names: Set[Signal], probs_BV: Tensor) -> None:
    """Write the signals of the token to be drawn from `probs_BV`, and stop rows where one passes its threshold.

    The token itself is kept: `draft_lens_R` is lowered to `position + 1`. A threshold that nobody set never passes.
    """
    passed_B = torch.zeros(batch, dtype=torch.bool, device=probs_BV.device)
    for place, name in enumerate(DRAFT_SIGNALS):
        if name in names:
            value_B = state.signals_SRM[place, :batch, position]
            value_B.copy_(_draft_signal(name, probs_BV))
            threshold_B = state.control.stop_SR[place, :batch]
            passed_B = passed_B | (value_B > threshold_B if name in PASSES_ABOVE else value_B < threshold_B)
    lens_B = state.draft_lens_R[:batch]
    lens_B.copy_(torch.where(passed_B, lens_B.clamp(max=position + 1), lens_B))


def _draft_signal(name: Signal, probs_BV: Tensor) -> Tensor:
    if name == "entropy":
        return entropy_bits(probs_BV)
    if name == "top_prob":
        return probs_BV.amax(-1)
    best_B2 = probs_BV.topk(2, dim=-1).values
    return best_B2[:, 0] - best_B2[:, 1]


def note_target(
    state: RowState, names: Set[Signal], logits_NV: Tensor, grid_BW: Tensor, plain_BGV: Tensor | None
) -> None:
    """Write the signals of the distributions that judge each draft token; `plain_BGV` are the drafter's own."""
    batch, gamma = grid_BW.shape[0], grid_BW.shape[1] - 1
    probs_NV, judge_BG = logits_NV.softmax(-1), grid_BW[:, :-1]
    if "target_entropy" in names:
        place = SIGNALS.index("target_entropy")
        state.signals_SRM[place, :batch, :gamma].copy_(entropy_bits(probs_NV)[judge_BG])
    if "js" in names and plain_BGV is not None:
        place = SIGNALS.index("js")
        state.signals_SRM[place, :batch, :gamma].copy_(js_distance(probs_NV[judge_BG], plain_BGV))
