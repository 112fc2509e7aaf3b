"""A policy's word between drafting and verification goes through the guard, and changes rows that are greedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.check.toy import ToyEngine
from adaptive.contract import BoolArray, Decision, DraftProgress, Needs, StepReport
from adaptive.controller import AdaptiveController
from adaptive.guard import Guard
from adaptive.legal import checked_needs
from tests.adaptive.scripted import always, fail, view_of
from tests.adaptive.test_guard import BATCH, CAPS, Extending, guard_of

GREEDY = np.ones(BATCH, np.bool_)
MIXED = np.array([True, False, True])
SAMPLED = np.zeros(BATCH, np.bool_)
AFTER_TWO = DraftProgress(1, np.arange(BATCH), {})
TOLD = DraftProgress(1, np.arange(BATCH), {"top_prob": np.array([[0.5, 0.5], [0.5, np.nan], [0.5, 0.5]])})
"""Row 1 drafted one token, the others two."""


class Trimming(Extending):
    def trim(self, progress: DraftProgress) -> Any:
        return self.needs["answer"]()

    def clone(self) -> Any:
        return Trimming(self.script, self.gammas, self.needs)


def trim(
    guard: Guard,
    answer: Callable[[], Any],
    greedy_B: BoolArray | None,
    decision: Decision = Decision(2),  # noqa: B008 - frozen
    progress: DraftProgress = AFTER_TWO,
) -> Any:
    """What the guard makes of the policy's answer, as lists and numbers."""
    view = replace(view_of(BATCH), greedy=greedy_B)
    verify = guard.trim(Trimming(needs={"answer": answer}), progress, view, decision)
    return verify.tolist() if isinstance(verify, np.ndarray) else verify


@pytest.mark.parametrize(
    ("answer", "expected", "clamped", "errors"),
    [
        (lambda: 5, 5, 0, 0),
        (lambda: None, None, 0, 0),
        (lambda: np.array([2, 0, 1]), [2, 0, 1], 0, 0),
        (lambda: 1, BATCH, 1, 0),
        (lambda: np.array([2, 9, -1]), [2, 2, 0], 1, 0),
        (lambda: np.array([2, 9]), None, 1, 0),
        (lambda: "all", None, 1, 0),
        (fail, None, 0, 1),
    ],
)
def test_trim_that_fails_leaves_the_decision_as_it_is(
    answer: Callable[[], Any], expected: Any, clamped: int, errors: int
) -> None:
    guard = guard_of()
    assert trim(guard, answer, GREEDY) == expected
    assert (guard.faults.clamped["verify"], guard.faults.errors["trim"]) == (clamped, errors)
    assert guard.faults.clamped["trim"] == 0


LENS, CUT = np.array([1, 2, 1]), np.array([1, 0, 0])


@pytest.mark.parametrize(
    ("greedy", "decided", "answer", "expected", "clamped"),
    [
        pytest.param(GREEDY, None, CUT, [1, 0, 0], 0, id="greedy rows are cut"),
        pytest.param(MIXED, None, CUT, [1, 2, 0], 1, id="a sampled row keeps its length"),
        pytest.param(MIXED, None, LENS, [1, 2, 1], 0, id="greedy rows are cut beside it"),
        pytest.param(SAMPLED, None, CUT, [2, 2, 2], 1, id="sampled rows keep theirs"),
        pytest.param(None, None, CUT, [2, 2, 2], 1, id="where nobody tells all rows sample"),
        pytest.param(None, None, np.full(3, 2), [2, 2, 2], 0, id="no cut is no offence"),
        pytest.param(MIXED, LENS, np.array([0, 2, 2]), [0, 2, 2], 0, id="from lengths decided before"),
        pytest.param(MIXED, LENS, np.array([1, 1, 1]), [1, 2, 1], 1, id="not below what was decided"),
        pytest.param(SAMPLED, CUT, np.full(3, 2), [1, 0, 0], 1, id="nor above it"),
        pytest.param(GREEDY, 4, CUT, [1, 0, 0], 0, id="greedy rows leave a budget"),
        pytest.param(MIXED, 4, LENS, None, 1, id="others share it"),
        pytest.param(GREEDY, None, 4, 4, 0, id="a budget for greedy rows"),
        pytest.param(MIXED, None, 8, None, 1, id="none where a row samples"),
        pytest.param(MIXED, None, 9, None, 0, id="but one that binds nobody"),
        pytest.param(MIXED, 4, 4, None, 0, id="the budget that was decided"),
        pytest.param(MIXED, 4, 9, None, 1, id="a budget is not lifted"),
        pytest.param(MIXED, LENS, 9, None, 1, id="nor are lengths"),
        pytest.param(None, 4, None, None, 0, id="nothing to say"),
    ],
)
def test_only_greedy_rows_are_cut_once_tokens_are_drawn(
    greedy: BoolArray | None, decided: Any, answer: Any, expected: Any, clamped: int
) -> None:
    guard = guard_of()
    assert trim(guard, lambda: answer, greedy, Decision(2, verify=decided)) == expected
    assert guard.faults.clamped == ({"trim": 1} if clamped else {})


def test_a_row_that_drafted_less_may_be_told_so() -> None:
    guard = guard_of()
    assert trim(guard, lambda: np.array([2, 1, 2]), None, progress=TOLD) == [2, 2, 2], "the engine knows what is there"
    assert guard.faults.clamped == {}
    trim(guard, lambda: np.array([2, 0, 2]), None, progress=TOLD)
    assert guard.faults.clamped == {"trim": 1}
    assert "rows [1], which sample" in str(guard.faults.last)


def test_an_answer_for_other_rows_is_not_taken() -> None:
    guard = guard_of()
    others = replace(AFTER_TWO, rows=AFTER_TWO.rows + 1)
    assert trim(guard, lambda: 5, GREEDY, progress=others) is None
    assert guard.faults.clamped["trim"] == 1


def test_trimming_takes_a_method_and_an_engine_that_asks() -> None:
    needs = Needs({}, trim=True)
    assert checked_needs(Trimming(), needs, CAPS, allow_lossy=False).budget, "what trim answers is captured for"
    late = replace(CAPS, delay=1)  # the step that drafts is not the one decided last
    for policy, caps in ((Extending(), CAPS), (Trimming(), replace(CAPS, stepwise=False)), (Trimming(), late)):
        with pytest.raises(ValueError, match=r"Needs\.trim"):
            checked_needs(policy, needs, caps, allow_lossy=False)


def test_what_trim_answers_is_the_decision_that_was_executed() -> None:
    class Three(Trimming):
        def trim(self, progress: DraftProgress) -> int:
            return 3

    class Asking(ToyEngine):
        def __init__(self) -> None:
            super().__init__()
            self._caps = replace(self._caps, verify_budget=True, stepwise=True)

    policy = Three(always(4), needs={"trim": True})
    controller = AdaptiveController(Asking(), policy)
    controller.plan(view_of(1))
    one = np.array([1])
    assert controller.trim(DraftProgress(3, one - 1, {})) is None, "nobody says that this row is greedy"
    assert controller.stats().clamped == {"trim": 1}
    controller.plan(replace(view_of(1, step=1), greedy=one > 0))
    assert controller.trim(DraftProgress(3, one - 1, {})) == 3
    assert controller.stats().clamped == {"trim": 1}
    for step in (0, 1):
        controller.report(StepReport(step, 4, one - 1, one > 0, one, one, one, one))
    assert [decision.verify for _, decision, _ in policy.learnt] == [None, 3]
