"""Medusa's typical acceptance: what the target itself finds likely enough may stand.

Shapes: B batch bucket, G = γ, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

INSIDE = 1e-5  # added to a probability within the logarithm, as Medusa does


@dataclass(frozen=True, slots=True)
class Typical:
    """Token x stands if p(x) > min(ε, δ · exp(-H(p))), entropy in nats (Medusa, Cai et al. 2024; ε = .09, δ = .3).

    With ε = 1 and δ of the size of the vocabulary nothing is that likely, so that all tokens are the target's own; with
    ε = 0 all that it could say stands.
    """

    kind = AcceptanceKind.TYPICAL
    needs: frozenset[Signal] = frozenset()

    def mass(self, case: Case) -> Tensor:
        epsilon, delta = case.param(0), case.param(1)
        entropy_BG1 = -(case.seen_BGV * (case.seen_BGV + INSIDE).log()).sum(-1, keepdim=True)
        least_BG1 = torch.minimum(epsilon, delta * (-entropy_BG1).exp())
        return torch.where(case.seen_BGV > least_BG1, torch.inf, 0.0)
