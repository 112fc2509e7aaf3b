"""A controller that asks for a rule which is not exact, and such rules, loose enough to act on tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptive.contract import TABLE, Acceptance, AcceptanceKind, Capabilities, Decision, Needs, StepView
from tests.engine.tiny import Cycling, Shape

KIND = AcceptanceKind
TABLED = Acceptance(KIND.JS, {TABLE: np.linspace(1.0, 0.0, 33)})
LOOSE = {
    "typical": Acceptance(KIND.TYPICAL, {"epsilon": 0.02}),
    "threshold": Acceptance(KIND.THRESHOLD, {"threshold_single": 0.15, "threshold_acc": 0.5}),
    "js v1": Acceptance(KIND.JS, {"threshold": 0.9}),
    "js v2": TABLED,
    "divergence": Acceptance(KIND.DIVERGENCE, {"threshold": 0.4, "measure": 2.0, "fallback": 1.0}),
    "mentored": Acceptance(KIND.MENTORED, {"alpha": 0.6}),
    "cactus": Acceptance(KIND.CACTUS, {"alpha": 0.5}),
    "fly": Acceptance(KIND.FLY, {"entropy": 0.1, "window": 1.0}),
}
RATIOS = ("mentored", "cactus")
"""These relax nothing on greedy rows."""
STANDARD = Acceptance()


class Relaxing(Cycling):
    """Asks for one rule at every step; tables are given a row for each request."""

    def __init__(self, shapes: Sequence[Shape], rule: Acceptance) -> None:
        super().__init__(shapes)
        self.rule = rule

    def attach(self, caps: Capabilities) -> Needs:
        return replace(super().attach(caps), acceptances=frozenset({KIND.STANDARD, self.rule.kind}))

    def plan(self, view: StepView) -> Decision:
        params = dict(self.rule.params)
        if TABLE in params:
            params[TABLE] = np.tile(np.asarray(params[TABLE]), (len(view.rows), 1))
        return replace(super().plan(view), acceptance=Acceptance(self.rule.kind, params))
