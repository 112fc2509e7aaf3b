"""Fuzzy speculative decoding: where drafter and target nearly agree, what was drafted stands.

Shapes: B batch bucket, G = γ, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

TINY = 1e-30  # keeps a logarithm finite where the drafter gives nothing


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token stands if D(p, q) < threshold, D by `measure`: 0 Jensen-Shannon (base 2, from 0 to 1), 1 Kullback-Leibler
    of p from q (nats), 2 total variation; both distributions at temperature 1. Elsewhere `fallback` 0 leaves the token
    to the target (Holsman et al. 2025, FSD), 1 to the exact rule. Never if p(x) = 0.

    With threshold 0 and fallback 1 it is rejection sampling; with threshold 0 and fallback 0 nothing stands.
    """

    kind = AcceptanceKind.DIVERGENCE
    needs: frozenset[Signal] = frozenset({"js"})

    def mass(self, case: Case) -> Tensor:
        assert case.distance_BG is not None, "the step computes what a rule needs"
        assert case.draft_BGV is not None, "the step computes what a rule needs"
        threshold_B1, measure_B1, fallback_B1 = (plane_B.unsqueeze(1) for plane_B in case.params_KB[:3])
        p_BGV, q_BGV = case.target_BGV, case.draft_BGV
        divergence_BG = torch.where(measure_B1 == 1, kullback_leibler(p_BGV, q_BGV), case.distance_BG**2)
        divergence_BG = torch.where(measure_B1 == 2, total_variation(p_BGV, q_BGV), divergence_BG)
        near_BG1 = (divergence_BG < threshold_B1).unsqueeze(2)
        otherwise_BGV = torch.where((fallback_B1 > 0).unsqueeze(2), case.p_BGV, 0.0)
        return torch.where(near_BG1 & (case.seen_BGV > 0), torch.inf, otherwise_BGV)


def kullback_leibler(p_V: Tensor, q_V: Tensor) -> Tensor:
    """KL(p‖q) over the last dimension, in nats."""
    return (p_V * (p_V.clamp(min=TINY) / q_V.clamp(min=TINY)).log()).sum(-1)


def total_variation(p_V: Tensor, q_V: Tensor) -> Tensor:
    """Half of what p and q differ by, over the last dimension."""
    return (p_V - q_V).abs().sum(-1) / 2
