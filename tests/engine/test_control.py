"""What a decision sets on the device: written where it belongs, and only when it changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.contract import DRAFT_SIGNALS, TABLE, Acceptance, AcceptanceKind, Confidence, Decision, DraftStop
from adaptive.requests import Request, Sampling
from engine.control import MAX_PARAMS, NO_BUDGET, StepControl
from engine.graphs import EagerBackend
from engine.sampling.rules import POINTS, RULES
from tests.engine.tiny import Cycling, tiny_engine

ROWS = np.array([1, 3])


class Writes:
    """Writes, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self._backend = EagerBackend("cpu")

    def __call__(self, place: Tensor, value: Any) -> None:
        self.count += 1
        self._backend.write(place, value)


@pytest.fixture
def write() -> Writes:
    return Writes()


def test_values_go_to_their_rows_and_the_next_decision_clears_them(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")
    everything = Decision(
        2,
        verify=np.array([2, 0]),
        row_target=np.array([1.5, 2.5]),
        confidence=Confidence("margin", np.array([1.0, 2.0]), np.array([-1.0, -2.0])),
        draft_stop=DraftStop("entropy", np.array([0.5, 0.6])),
    )
    control.aim(write, everything, ROWS)
    assert control.limit_R.tolist() == [3, 2, 3, 0]
    assert control.budget_1.item() == NO_BUDGET
    assert control.target_R.tolist() == [-np.inf, 1.5, -np.inf, 2.5]
    assert control.weight_SM[DRAFT_SIGNALS.index("margin")].tolist() == [1, 2, 0]
    assert control.weight_SM.count_nonzero() == 2
    assert control.bias_M.tolist() == [-1, -2, 0]
    stop_SR = dict(zip(DRAFT_SIGNALS, control.stop_SR.tolist(), strict=True))
    assert stop_SR == {"top_prob": [-np.inf] * 4, "margin": [-np.inf] * 4, "entropy": [np.inf, 0.5, np.inf, 0.6]}
    control.aim(write, Decision(3, verify=9), ROWS)
    assert control.limit_R.tolist() == [3] * 4
    assert control.budget_1.item() == 9
    assert not control.weight_SM.any()
    assert not control.target_R.isfinite().any()
    assert not control.stop_SR.isfinite().any()


def test_nothing_is_written_that_is_there_already(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")
    for _ in range(3):
        control.aim(write, Decision(2), ROWS)
    assert write.count == 0
    for _ in range(3):
        control.aim(write, Decision(2, verify=5, draft_stop=DraftStop("top_prob", 0.4)), ROWS)
    assert write.count == 2, "one buffer of integers and one of floats"
    control.aim(write, Decision(2, verify=6, draft_stop=DraftStop("top_prob", 0.4)), ROWS)
    assert write.count == 3
    control.aim(write, Decision(2), ROWS)
    assert write.count == 5


def test_an_interrupted_write_is_made_good(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")

    def interrupted(place: Tensor, value: Any) -> None:
        write(place, value)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        control.aim(interrupted, Decision(2, verify=np.array([1, 0])), ROWS)
    control.forget()
    control.aim(write, Decision(2), ROWS)
    assert control.limit_R.tolist() == [3, 3, 3, 3]


def test_a_limit_is_lowered_never_raised(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")
    control.aim(write, Decision(3, verify=np.array([1, 3])), ROWS)
    control.limit(write, ROWS, np.array([2, 1]))
    assert control.limit_R.tolist() == [3, 1, 3, 1]
    control.aim(write, Decision(3), ROWS)
    assert control.limit_R.tolist() == [3] * 4


def test_a_rules_parameters_are_scalars_or_one_for_each_row(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")
    acceptance = Acceptance(AcceptanceKind.TYPICAL, {"epsilon": np.array([0.1, 0.2])})
    control.aim(write, Decision(2, acceptance=acceptance), ROWS)
    expected = torch.tensor([[0, 0.1, 0, 0.2], [0, 0.3, 0, 0.3]], dtype=torch.float64)
    assert torch.equal(control.params_KR[:2], expected), "what is not said is the default"
    assert not control.params_KR[2:].any()
    control.aim(write, Decision(2), ROWS)
    assert not control.params_KR.any()
    control.aim(write, Decision(2, acceptance=Acceptance(AcceptanceKind.TYPICAL)), ROWS)
    assert control.params_KR[0].tolist() == [0, 0.09, 0, 0.09]


def test_every_rules_parameters_have_a_place() -> None:
    assert {kind for kind in AcceptanceKind if kind.params} == set(RULES)
    assert max(len(kind.params) for kind in AcceptanceKind) < MAX_PARAMS


def test_tables_are_written_when_they_change_and_whatever_their_length(write: Writes) -> None:
    control = StepControl(4, 3, "cpu")

    def tables(*values: list[float]) -> Decision:
        return Decision(2, acceptance=Acceptance(AcceptanceKind.JS, {TABLE: np.array(values)}))

    # three points, at distances 0, .5 and 1: a quarter of the way from 0 to 1 the first row reads (1 + .6) / 2 = .8
    decision = tables([1.0, 0.6, 0.0], [1.0, 1.0, 0.0])
    for _ in range(2):
        control.aim(write, decision, ROWS)
    assert write.count == 2, "floats and tables"
    quarter, half = (POINTS - 1) // 4, (POINTS - 1) // 2
    assert control.table_RT[1, [0, quarter, half, -1]].tolist() == pytest.approx([1.0, 0.8, 0.6, 0.0])
    assert control.params_KR[-1].tolist() == [0, 1, 0, 1]
    full = np.linspace(1.0, 0.0, POINTS)
    control.aim(write, tables(full.tolist(), full.tolist()), ROWS)
    assert write.count == 3
    assert control.table_RT[3].tolist() == full.tolist()
    control.forget()
    control.aim(write, tables(full.tolist(), full.tolist()), ROWS)
    assert write.count == 6
    control.aim(write, Decision(2, acceptance=Acceptance(AcceptanceKind.JS)), ROWS)
    assert not control.params_KR[-1].any(), "no table, no row reads one"


def test_lossy_permission_is_each_rows_own() -> None:
    engine = tiny_engine(max_batch=3)
    engine.attach(Cycling((0,)))
    for place in range(3):
        engine.submit(Request([1, 2, 3], Sampling(max_tokens=3 if place == 1 else 20), allow_lossy=place == 1))
    engine.step()
    assert engine.state.allow_lossy_R[:3].tolist() == [0, 1, 0]
    for _ in range(3):
        engine.step()
    engine.submit(Request([4], Sampling(max_tokens=20)))
    engine.step()
    assert engine.state.allow_lossy_R[:3].tolist() == [0, 0, 0], "the next request in the row did not consent"
