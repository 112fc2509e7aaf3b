"""SGLang's two thresholds: a likely token stands in any case, and all others a little more often.

Shapes: B batch bucket, G = γ, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

FLOOR = 1e-9  # of threshold_acc, as in SGLang


@dataclass(frozen=True, slots=True)
class Threshold:
    """Token x stands if p(x) ≥ threshold_single, else with probability p(x) / (q(x) · threshold_acc).

    SGLang's kernel has no q, since its candidates are chosen without chance; for such drafts this is the same. Both
    at 1 (SGLang's defaults): rejection sampling. On greedy rows threshold_acc does nothing.
    """

    kind = AcceptanceKind.THRESHOLD
    needs: frozenset[Signal] = frozenset()

    def mass(self, case: Case) -> Tensor:
        single, acc = case.param(0), case.param(1).clamp(FLOOR, 1.0)
        return torch.where(case.seen_BGV >= single, torch.inf, case.p_BGV / acc)
