"""Budgets, thresholds and answers between draft steps change no probability of a sampled answer; biased ones do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptive.contract import Acceptance, AcceptanceKind, Capabilities, Confidence, Decision, Needs, StepView
from adaptive.requests import Sampling
from tests.engine.joint_law import SAMPLES, SMALL, joint_law, p_value, sampled_answers
from tests.engine.offences import peek
from tests.engine.steering import Steering
from tests.engine.test_model_drafter import NEAR_SMALL
from tests.engine.tiny import Cycling, DraftModel, near_weights, random_weights

SEED = 3
PLAIN = Sampling(temperature=0.9)
STANDARD, BLOCK = Acceptance(AcceptanceKind.STANDARD), Acceptance(AcceptanceKind.BLOCK)
FAR_SMALL = DraftModel(SMALL, random_weights(SMALL, seed=12))
MID_SMALL = DraftModel(SMALL, near_weights(SMALL, SEED, noise=0.6))


class Tight(Cycling):
    """A budget of little more than the roots, which goes to the rows that the drafter is surest about."""

    def attach(self, caps: Capabilities) -> Needs:
        return replace(super().attach(caps), signals=frozenset({"top_prob"}), budget=True)

    def plan(self, view: StepView) -> Decision:
        plain, batch = super().plan(view), len(view.rows)
        sharp = Confidence("top_prob", np.full(plain.gamma, 12.0), np.full(plain.gamma, -7.0))
        return replace(plain, verify=batch + (batch + 1) // 2, confidence=sharp)


def chance(controller: Cycling, draft: DraftModel, samples: int = SAMPLES) -> float:
    """How likely answers as far from the exact joint law of four tokens are, were they drawn from it."""
    answers = sampled_answers(controller.gammas, PLAIN, SEED, draft, prompt=[1], samples=samples, controller=controller)
    return p_value(answers, joint_law(PLAIN, SEED, prompt=[1]))


@pytest.mark.parametrize(("draft", "rule"), [(FAR_SMALL, STANDARD), (MID_SMALL, BLOCK)], ids=["far", "nearer, block"])
def test_rows_bound_by_one_budget_keep_the_exact_joint_law(draft: DraftModel, rule: Acceptance) -> None:
    controller = Tight((3, 2), rule)
    assert chance(controller, draft) > 1e-3
    bound = [report.verified.sum() < report.drafted.sum() for report in controller.reports]
    assert np.mean(bound) > 0.8, "the budget binds"


@pytest.mark.parametrize(
    ("stepwise", "rule"), [(False, STANDARD), (True, BLOCK)], ids=["on the device", "stepwise, block"]
)
def test_all_levers_at_once_keep_the_exact_joint_law(stepwise: bool, rule: Acceptance) -> None:
    controller = Steering((3, 1, 2), 5, rule, stepwise=stepwise)
    assert chance(controller, NEAR_SMALL) > 1e-3


def test_a_budget_by_the_drawn_tokens_probability_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same budget, but a token counts by q of what was drawn: unlikely tokens are dropped unjudged."""
    peek(monkeypatch)
    assert chance(Tight((3, 2)), FAR_SMALL, samples=SAMPLES // 2) < 1e-6
