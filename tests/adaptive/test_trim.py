"""A policy's word between drafting and verification goes through the guard like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive.contract import Decision, DraftProgress, Needs
from adaptive.legal import checked_needs
from tests.adaptive.scripted import fail
from tests.adaptive.test_guard import BATCH, CAPS, Extending, decide, guard_of


class Trimming(Extending):
    def trim(self, progress: DraftProgress) -> Any:
        return self.needs["answer"]()

    def clone(self) -> Trimming:
        return Trimming(self.script, self.gammas, self.needs)


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
    decide(guard, Decision(2))
    verify = guard.trim(Trimming(needs={"answer": answer}), DraftProgress(1, np.arange(BATCH), {}))
    assert (verify.tolist() if isinstance(verify, np.ndarray) else verify) == expected
    assert (guard.faults.clamped["verify"], guard.faults.errors["trim"]) == (clamped, errors)


def test_trimming_takes_a_method_and_an_engine_that_asks() -> None:
    needs = Needs({}, trim=True)
    assert checked_needs(Trimming(), needs, CAPS, allow_lossy=False).budget, "what trim answers is captured for"
    for policy, caps in ((Extending(), CAPS), (Trimming(), replace(CAPS, stepwise=False))):
        with pytest.raises(ValueError, match=r"Needs\.trim"):
            checked_needs(policy, needs, caps, allow_lossy=False)
