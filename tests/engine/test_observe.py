"""What a view shows is what the requests in its rows asked for and got, whatever was looked up before."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adaptive.contract import StepReport, StepView
from adaptive.requests import Request, Sampling
from engine.observe import Observer

ROWS = 6


def request(row: int, tokens: int, **wants: Any) -> Any:
    asked = Request("x", Sampling(temperature=wants.pop("temperature", 0.0)), **wants)
    return SimpleNamespace(
        row=row, context_len=10 + tokens, tokens=[0] * tokens, request=asked, first_token_at=5.0 - tokens
    )


def shown(view: StepView) -> dict[str, Any]:
    """Fields as plain lists, without the step's number."""
    values = {field.name: getattr(view, field.name) for field in fields(view) if "step" not in field.name}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def fresh(batch: list[Any]) -> dict[str, Any]:
    """By an observer that has never seen another batch."""
    observer = Observer(ROWS, lambda: 7.0)
    for one in batch:
        observer.seat(one)
    return shown(observer.view(batch, 0, 0, 0.5, None))


def test_a_view_is_that_of_an_observer_without_a_past() -> None:
    rng = np.random.default_rng(0)
    observer, seated = Observer(ROWS, lambda: 7.0), dict[int, Any]()
    for _ in range(300):
        row = int(rng.integers(ROWS))
        if row in seated and rng.random() < 0.4:
            del seated[row]
        else:
            seated[row] = request(
                row,
                int(rng.integers(3)),
                temperature=float(rng.integers(2)),
                tpot_slo_ms=[None, 20.0, 40.0][rng.integers(3)],
                slo_class=[None, "chat"][rng.integers(2)],
                allow_lossy=bool(rng.integers(2)),
                speculation=bool(rng.integers(2)),
            )
            observer.seat(seated[row])
        batch = [seated[row] for row in sorted(seated)]
        # as strings: nan, no limit, differs from itself
        assert str(shown(observer.view(batch, 0, 0, 0.5, None))) == str(fresh(batch))


def test_a_request_without_tokens_has_waited_for_none() -> None:
    observer = Observer(ROWS, lambda: 7.0)
    batch = [request(1, 0), request(4, 2)]
    for one in batch:
        observer.seat(one)
    view = observer.view(batch, 0, 0, 0.5, None)
    assert view.elapsed is not None
    assert view.elapsed.tolist() == [0.0, 4.0]
    report = StepReport(0, 0, view.rows, *[np.ones(2, np.int64)] * 5)  # type: ignore[arg-type]
    observer.completed_at = 6.5
    observer.advance(view, report)
    later = observer.view(batch, 0, 0, 0.5, None)
    assert later.elapsed is not None
    assert (later.elapsed.tolist(), later.emitted.tolist()) == ([0.5, 4.0], [1, 3])


@pytest.mark.parametrize("name", ["rows", "context_lens", "emitted", "greedy", "allow_lossy", "tpot_slo"])
def test_no_policy_can_change_what_later_steps_go_by(name: str) -> None:
    observer = Observer(ROWS, lambda: 7.0)
    observer.seat(request(0, 1))
    view = observer.view([request(0, 1)], 0, 0, 0.5, None)
    with pytest.raises(ValueError, match="read-only"):
        getattr(view, name)[0] = 1
