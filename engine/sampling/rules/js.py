"""AdaSD's acceptance: by the distance between drafter and target, whatever the token is.

Shapes: B batch bucket, G = γ, V vocabulary, T points of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

POINTS = 33  # of a row's table on the device; tables of another length are resampled


@dataclass(frozen=True, slots=True)
class JensenShannon:
    """With the distance d = √D_JS (base 2, temperature 1), a token stands if d < threshold, or, where the row has a
    table, with the probability that it gives at d. Never if p(x) ≤ ε (AdaSD, arXiv 2512.11280, versions 1 and 2).

    With threshold 0 nothing stands and all tokens are the target's own; above 1 all stand that p(x) > ε allows.
    """

    kind = AcceptanceKind.JS
    needs: frozenset[Signal] = frozenset({"js"})

    def mass(self, case: Case) -> Tensor:
        assert case.distance_BG is not None, "the step computes what a rule needs"
        threshold_B1, tabled_B1 = case.params_KB[1].unsqueeze(1), case.params_KB[-1].unsqueeze(1)
        below_BG = (case.distance_BG < threshold_B1).to(case.distance_BG.dtype)
        chance_BG = torch.where(tabled_B1 > 0, interpolate(case.table_BT, case.distance_BG), below_BG)
        mass_BGV = chance_BG.to(case.q_BGV.dtype).unsqueeze(2) * case.q_BGV
        return torch.where(case.seen_BGV > case.param(0), mass_BGV, 0.0)


def interpolate(table_BT: Tensor, distance_BG: Tensor) -> Tensor:
    """Each row's table, of values at T equally spaced distances from 0 to 1, read linearly `[B, G]`."""
    last = table_BT.shape[1] - 1
    place_BG = distance_BG.clamp(0, 1) * last
    low_BG = place_BG.floor().clamp(max=last - 1)
    index_BG = low_BG.to(torch.int64)
    low_value_BG, high_value_BG = table_BT.gather(1, index_BG), table_BT.gather(1, index_BG + 1)
    return torch.lerp(low_value_BG, high_value_BG, place_BG - low_BG)
