"""Rules beside trees, and what policies tell of themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from adaptive.contract import Decision, TreeShape
from policies import Fixed
from tests.adaptive.scripted import Scripted, fail
from tests.adaptive.test_guard import TYPICAL, decide, guard_of


def test_a_tree_is_judged_exactly() -> None:
    guard, tree = guard_of(), Decision(2, tree=TreeShape(parents=(-1, -1, 0)))
    assert decide(guard, replace(tree, acceptance=TYPICAL)) == tree
    assert guard.faults.clamped == {"tree_acceptance": 1}


class Speaking(Fixed):
    """Says what it is given to say."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        super().__init__(1)
        self.answer = answer

    def metrics(self) -> Any:
        return self.answer()

    def clone(self) -> Self:
        return type(self)(self.answer)


def test_what_a_policy_tells_of_itself_is_shown_or_its_failure_counted() -> None:
    guard = guard_of()
    assert guard.metrics(Scripted()) == {}
    assert guard.metrics(Speaking(lambda: {"share": 0.5})) == {"share": 0.5}
    assert guard.metrics(Speaking(fail)) == {}
    assert guard.faults.errors == {"metrics": 1}
