"""Cactus: a token's probability may grow by what a bound on the divergence allows.

Shapes: B batch bucket, G = γ, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case


@dataclass(frozen=True, slots=True)
class Cactus:
    """Token x stands with probability g / q(x), g = min(1, p(x) + √(2 α p(x) (1 - p(x)))) (Hao and Mou 2026).

    Raising one token's probability so far costs a Kullback-Leibler divergence of about α nats. α = 0: rejection
    sampling. On greedy rows it changes nothing.
    """

    kind = AcceptanceKind.CACTUS
    needs: frozenset[Signal] = frozenset()

    def mass(self, case: Case) -> Tensor:
        p_BGV, alpha = case.p_BGV, case.param(0).clamp(min=0.0)
        raised_BGV = (p_BGV + (2 * alpha * p_BGV * (1 - p_BGV).clamp(min=0.0)).sqrt()).clamp(max=1.0)
        return torch.maximum(p_BGV, raised_BGV)  # rounding leaves p a little above 1
