"""`check_policy` passes what is right and, one mutant each, finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.check import check_policy
from adaptive.check.traces import BARE, SMALL, WIDE
from adaptive.contract import (
    Acceptance,
    AcceptanceKind,
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    IntArray,
    Needs,
    Policy,
    StepReport,
    StepView,
)
from policies import EmaTiers, Fixed, Schedule


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(0),
        Fixed(3),
        lambda: Schedule([[1, 4, 5], [5, 64, 2]], hysteresis=2),
        EmaTiers,
        EmaTiers.sglang(),
    ],
    ids=["plain", "fixed", "schedule", "ema", "sglang"],
)
def test_right_policies_pass(policy: Policy | Callable[[], Policy]) -> None:
    assert "clones afresh" in check_policy(policy)


class Base:
    """Right in every respect."""

    def __init__(self) -> None:
        self.learnt = 0

    def bind(self, caps: Capabilities) -> Needs:
        self.learnt = 0
        return Needs.everywhere(caps, caps.gammas)

    def decide(self, view: StepView) -> Decision:
        return Decision(0)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.learnt += 1

    def forget(self, rows: Sequence[int]) -> None:
        """Keeps nothing."""

    def clone(self) -> Any:
        return type(self)()


class TooDeep(Base):
    def decide(self, view: StepView) -> Decision:
        return Decision(99)


class Undeclared(Base):
    def decide(self, view: StepView) -> Decision:
        return Decision(0, acceptance=Acceptance(AcceptanceKind.BLOCK))


class Dependent(Base):
    """Takes an optional field for granted."""

    def decide(self, view: StepView) -> Decision:
        assert view.greedy is not None
        return Decision(int(view.greedy.all()))


class Scribbling(Base):
    def decide(self, view: StepView) -> Decision:
        view.emitted[0] = 0
        return Decision(0)


class Trusting(Base):
    """Divides by the rows of a report."""

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.learnt += int(report.accepted.sum()) // len(report.rows)


class Finite(Base):
    """Takes a measured time for granted."""

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        self.learnt += int(report.step_s * 1e6)


class Strict(Base):
    """Takes every row to be known."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[int] = set()

    def decide(self, view: StepView) -> Decision:
        self.rows.update(view.rows.tolist())
        return Decision(0)

    def forget(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.rows.remove(row)


class Narrow(Base):
    """An array for four rows."""

    def decide(self, view: StepView) -> Decision:
        np.zeros(4)[: view.num_decode] += view.emitted
        return Decision(0)


class Selfish(Base):
    def clone(self) -> Any:
        return self


class Remembering(Base):
    """Hands what it learnt to its clones."""

    def bind(self, caps: Capabilities) -> Needs:
        return Needs.everywhere(caps, caps.gammas)

    def decide(self, view: StepView) -> Decision:
        return Decision(int(self.learnt > 20 and view.num_decode == 1), reason=f"after {self.learnt}")

    def clone(self) -> Any:
        twin = type(self)()
        twin.learnt = self.learnt
        return twin


class Rolling(Base):
    """Random without a seed."""

    def decide(self, view: StepView) -> Decision:
        return Decision(0, reason=str(np.random.default_rng().integers(100)))


class Choosy(Base):
    def bind(self, caps: Capabilities) -> Needs:
        raise ValueError("never good enough")


class Trimming(Base):
    """Drops the last token of every row."""

    def bind(self, caps: Capabilities) -> Needs:
        return replace(super().bind(caps), signals=frozenset({"top_prob"}), trim=True, stepwise=True)

    def decide(self, view: StepView) -> Decision:
        self.greedy = np.zeros(len(view.rows), np.bool_) if view.greedy is None else view.greedy
        return Decision(2)

    def extend(self, progress: DraftProgress) -> BoolArray:
        return np.nan_to_num(progress.signals["top_prob"]) > 0.5

    def trim(self, progress: DraftProgress) -> IntArray:
        return np.full(len(progress.rows), progress.position)


class Careful(Trimming):
    """Does so where a row is greedy."""

    def trim(self, progress: DraftProgress) -> IntArray:
        return np.where(self.greedy, progress.position, progress.position + 1)


class Budgeting(Trimming):
    """Has a budget that leaves the last token of one row out."""

    def trim(self, progress: DraftProgress) -> Any:
        return len(progress.rows) * (progress.position + 2) - 1


class NoNeeds(Base):
    def bind(self, caps: Capabilities) -> Any:
        return {"gammas": (0,)}


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (TooDeep, "gamma=99 is not offered"),
        (TooDeep, "the guard had to step in"),
        (Undeclared, "decides legally: acceptance block"),
        (Dependent, "decides legally"),
        (Scribbling, "read-only"),
        (Trusting, "ZeroDivisionError"),
        (Finite, "cannot convert float NaN"),
        (Strict, "forgets unknown rows: raised KeyError"),
        (Narrow, "takes odd batches: raised ValueError"),
        (Selfish, "clone returned the policy itself"),
        (Remembering(), "clones afresh"),
        (Rolling, "decides differently"),
        (Choosy, "bind refuses every engine: ['never good enough'"),
        (NoNeeds, "return adaptive.contract.Needs"),
    ],
)
def test_wrong_policies_are_found_out(policy: Policy | Callable[[], Policy], complaint: str) -> None:
    with pytest.raises(AssertionError) as failure:
        check_policy(policy, (BARE, SMALL))
    assert complaint in str(failure.value)


@pytest.mark.parametrize(
    ("policy", "complaint"), [(Trimming, "other lengths of rows"), (Budgeting, "a budget that is shared")]
)
def test_trimming_of_rows_that_sample_is_found_out(policy: Callable[[], Policy], complaint: str) -> None:
    with pytest.raises(AssertionError, match=rf"fails 1 of \d+ checks:\n  - trims greedy rows alone: .*{complaint}"):
        check_policy(policy, (WIDE,))


def test_trimming_of_greedy_rows_passes() -> None:
    check_policy(Careful, (WIDE,))


def test_base_of_the_mutants_is_right() -> None:
    check_policy(Base)
