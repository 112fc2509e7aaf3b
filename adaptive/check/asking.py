"""What a policy is asked between two draft tokens, asked without an engine.

Shapes: B rows of the step, G = γ.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from adaptive.contract import DRAFT_SIGNALS, DraftProgress, Needs, Policy, StepView
from adaptive.legal import Stepwise


def drafted(policy: Policy, needs: Needs, view: StepView, gamma: int) -> DraftProgress:
    """What `trim` is shown of made-up drafts: γ tokens for each row, or as many as `extend` wants if it is asked."""
    rng = np.random.default_rng([view.step, gamma])
    made_BG = {name: rng.random((len(view.rows), gamma)) for name in DRAFT_SIGNALS if name in needs.signals}
    lens_B = np.full(len(view.rows), gamma)
    position = 0
    while needs.stepwise and (lens_B > position + 1).any():
        told = {name: np.where(lens_B > position, made[:, position], np.nan) for name, made in made_BG.items()}
        more_B = cast(Stepwise, policy).extend(DraftProgress(position, view.rows, told))
        position += 1
        lens_B = np.where(more_B, lens_B, np.minimum(lens_B, position))
    there_BG = np.arange(gamma) < lens_B[:, None]
    signals = {name: np.where(there_BG, made, np.nan) for name, made in made_BG.items()}
    return DraftProgress(int(lens_B.max()) - 1, view.rows, signals)
