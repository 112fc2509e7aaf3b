"""The decision a policy learns from: what it decided, at the γ that was run."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from adaptive.contract import Acceptance, AcceptanceKind, Confidence, Decision, DraftStop, TreeShape
from adaptive.controller import executed


def test_it_differs_in_gamma_alone() -> None:
    stop, rule, tree = DraftStop("top_prob", 0.5), Acceptance(AcceptanceKind.JS), TreeShape((-1, 0))
    confidence = Confidence("top_prob", np.ones(4), np.ones(4))
    decision = Decision(4, 9, np.ones(1), confidence, stop, tree, rule, "model", "word")
    for field in fields(Decision):
        assert getattr(decision, field.name) != field.default, "a field that this test would overlook"
    made = executed(decision, 2)
    assert made.gamma == 2
    for field in fields(Decision)[1:]:
        assert getattr(made, field.name) is getattr(decision, field.name)


def test_it_is_the_decision_itself_where_gamma_is_as_decided() -> None:
    decision = Decision(4, reason="word")
    assert executed(decision, 4) is decision
