"""Mentored decoding: every token's probability may grow by the same factor.

Shapes: B batch bucket, G = γ, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

CEILING = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Mentored:
    """Token x stands with probability p(x) / ((1 - α) q(x)) (Tran-Thien's optimal lossy variant, its form with b = 1).

    What comes out has no token more than 1 / (1 - α) times as likely as the target has it, so KL(out‖p) ≤ -ln(1 - α).
    α = 0: rejection sampling. On greedy rows it changes nothing.
    """

    kind = AcceptanceKind.MENTORED
    needs: frozenset[Signal] = frozenset()

    def mass(self, case: Case) -> Tensor:
        return case.p_BGV / (1 - case.param(0).clamp(0.0, CEILING))
