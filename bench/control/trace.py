"""What a model would have done: how many drafts stand, and what drafter and target say about them.

Shapes: S steps, B rows, M largest γ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptive.contract import FloatArray, IntArray, Signal

DIFFERENT_STEPS = 97
"""Steps before a trace repeats itself."""
STANDS = 0.6  # chance of a draft token


@dataclass(frozen=True, slots=True)
class Trace:
    """The same numbers for every arm: draft tokens that would stand in a row `[S, B]`, signals `[S, B, M]`."""

    runs_SB: IntArray
    signals: Mapping[Signal, FloatArray]

    @classmethod
    def drawn(cls, batch: int, max_gamma: int, seed: int = 0) -> Trace:
        """Tokens that stand come with surer drafters and smaller distances, as those of real models do."""
        rng = np.random.default_rng(seed)
        runs_SB = rng.geometric(1 - STANDS, (DIFFERENT_STEPS, batch)) - 1
        shape = (DIFFERENT_STEPS, batch, max_gamma)
        stands_SBM = np.arange(max_gamma) < runs_SB[..., None]
        sure_SBM = np.where(stands_SBM, rng.beta(6, 2, shape), rng.beta(3, 3, shape))
        apart_SBM = np.where(stands_SBM, rng.beta(2, 8, shape), rng.beta(5, 4, shape))
        signals: dict[Signal, FloatArray] = {"top_prob": sure_SBM, "entropy": 5 * (1 - sure_SBM), "js": apart_SBM}
        return cls(runs_SB, signals)

    def accepted(self, step: int, lens_B: IntArray) -> IntArray:
        """Of drafts of these lengths."""
        accepted_B: IntArray = np.minimum(self.runs_SB[step % DIFFERENT_STEPS], lens_B)
        return accepted_B

    def at(self, name: Signal, step: int, lens_B: IntArray, gamma: int) -> FloatArray:
        """A signal `[B, gamma]`, nan past `lens_B`."""
        known_BG = np.arange(gamma) < lens_B[:, None]
        return np.where(known_BG, self.signals[name][step % DIFFERENT_STEPS, :, :gamma], np.nan)
