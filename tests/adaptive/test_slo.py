from __future__ import annotations

import math

import pytest

from adaptive.check.toy import ToyEngine
from adaptive.controller import AdaptiveController
from adaptive.requests import Output, Request, RequestStats, Sampling
from adaptive.slo import NO_LIMITS, Attainment, Slo, SloLedger, merged
from tests.adaptive.scripted import Scripted

SLO = Slo(tpot_ms=50, classes={"code": 20})


def ended(name: str, tpot_ms: float, *, cancelled: bool = False) -> Output:
    stats = RequestStats(3, 10, 1.0, tpot_ms, 5, 0, 0)
    return Output(name, (), "", "cancelled" if cancelled else "stop", stats=stats)


def test_a_requests_own_limit_goes_before_its_class_and_that_before_the_default() -> None:
    assert SLO.applied(Request("x", tpot_slo_ms=5, slo_class="code")).tpot_slo_ms == 5
    assert SLO.applied(Request("x", slo_class="code")).tpot_slo_ms == 20
    assert SLO.applied(Request("x", slo_class="other")).tpot_slo_ms == 50
    assert SLO.applied(Request("x")).tpot_slo_ms == 50
    assert NO_LIMITS.applied(Request("x", slo_class="code")).tpot_slo_ms is None


@pytest.mark.parametrize("limit", [0, -1, math.inf])
def test_limits_are_positive(limit: float) -> None:
    with pytest.raises(ValueError, match=f"slo code={limit!r}"):
        Slo(classes={"code": limit})


def test_attainment_over_the_last_requests() -> None:
    ledger = SloLedger(window=3)
    for place, tpot in enumerate([60, 10, 15, 30]):
        ledger.opened(f"r{place}", SLO.applied(Request("x", slo_class="code")))
        ledger.closed([ended(f"r{place}", tpot)])
    ledger.opened("free", Request("x"))
    ledger.opened("gone", SLO.applied(Request("x")))
    ledger.closed([ended("free", 1000), ended("gone", 1, cancelled=True), ended("unheard of", 1)])
    kept = ledger.attainment()
    # the first of four has left the window: 10 and 15 keep 20 ms, 30 does not
    assert (kept["code"].finished, kept["code"].met) == (3, 2)
    assert kept["code"].tpot_ms == pytest.approx(55 / 3)
    assert list(kept) == ["code"]
    assert kept["code"].share == pytest.approx(2 / 3)


def test_merged_attainment_weighs_by_requests() -> None:
    both = merged([{"a": Attainment(1, 1, 10.0)}, {"a": Attainment(3, 0, 50.0), "b": Attainment(2, 2, 5.0)}])
    assert both == {"a": Attainment(4, 1, 40.0), "b": Attainment(2, 2, 5.0)}


def test_the_engine_and_the_statistics_learn_of_the_limits() -> None:
    asked: list[Request] = []

    class Noting(ToyEngine):
        def submit(self, request: Request) -> str:
            asked.append(request)
            return super().submit(request)

    controller = AdaptiveController(Noting(), Scripted(), slo=SLO)
    controller.generate([[1], [2]], Sampling(max_tokens=4), slo_class="code")
    controller.submit([3], Sampling(max_tokens=4))
    while controller.step():
        pass
    assert [request.tpot_slo_ms for request in asked] == [20, 20, 50]
    stats = controller.stats()
    assert {name: (kept.finished, kept.met) for name, kept in stats.slo.items()} == {"code": (2, 2), "default": (1, 1)}
    assert stats.to_dict()["slo"]["code"]["share"] == 1.0
