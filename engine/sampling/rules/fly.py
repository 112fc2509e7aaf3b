"""FLy: a miss where the target is unsure is forgiven if the tokens after it fit again.

Shapes: B batch bucket, G = γ, V vocabulary, E = G + 1 edges between tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from engine.sampling.rules.base import Case

LARGEST = 3  # probabilities that the entropy is taken over


@dataclass(frozen=True, slots=True)
class Fly:
    """A token that the exact rule refuses stands where three things meet (arXiv 2511.22972; gate and window as vLLM has
    them): the entropy of the target's three largest probabilities, -Σ p ln p, is `entropy` or more; the exact rule lets
    the next `window` draft tokens stand (at most γ - 1 of them), all of which are there; and p(x) > 0.

    Three probabilities have an entropy of ln 3 at most, so with more than that no gate opens: rejection sampling.
    """

    kind = AcceptanceKind.FLY
    needs: frozenset[Signal] = frozenset()

    def mass(self, case: Case) -> Tensor:
        top_BGX = case.seen_BGV.topk(min(LARGEST, case.seen_BGV.shape[-1]), dim=-1).values
        unsure_BG = torch.special.entr(top_BGX).sum(-1) >= case.param(0).squeeze(2)
        forgiven_BG1 = (unsure_BG & fits_again(case.exact_BG, case.verified_B, case.params_KB[1])).unsqueeze(2)
        return torch.where(forgiven_BG1 & (case.seen_BGV > 0), torch.inf, case.p_BGV)


def fits_again(exact_BG: Tensor, verified_B: Tensor, window_B: Tensor) -> Tensor:
    """Where the `window` tokens after a place are all there and all stand `[B, G]`."""
    gamma = exact_BG.shape[1]
    place_G = torch.arange(gamma, device=exact_BG.device)
    window_B1 = window_B.to(torch.int64).clamp(1, max(gamma - 1, 1)).unsqueeze(1)
    end_BG = place_G + 1 + window_B1
    stood_BE = torch.cat([torch.zeros_like(verified_B).unsqueeze(1), exact_BG.cumsum(1)], 1)
    before_BG, after_BG = stood_BE[:, 1:], stood_BE.gather(1, end_BG.clamp(max=gamma))
    return (end_BG <= verified_B.unsqueeze(1)) & (after_BG - before_BG == window_B1)
