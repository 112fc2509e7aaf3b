from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from adaptive.contract import StepReport
from adaptive.stats import BLOCK_ROWS, Tally, reached, total


def random_reports(batches: list[int], max_gamma: int) -> list[StepReport]:
    rng = np.random.default_rng(0)
    reports = []
    for step, batch in enumerate(batches):
        gamma = int(rng.integers(0, max_gamma + 1))
        drafted = rng.integers(0, gamma + 1, batch)
        verified = rng.integers(0, drafted + 1)
        accepted = rng.integers(0, verified + 1)
        live = rng.random(batch) < 0.8
        reports.append(StepReport(step, gamma, np.arange(batch), live, drafted, verified, accepted, accepted + 1))
    return reports


@pytest.mark.parametrize("batches", [[1], [0, 3, 5], [64] * 200, [BLOCK_ROWS + 10, 7, BLOCK_ROWS * 2]])
def test_tally_counts_what_a_loop_counts(batches: list[int]) -> None:
    tally, reports = Tally(3), random_reports(batches, max_gamma=5)
    for report in reports:
        tally.add(report)
    tally.fold()
    tally.fold()
    assert tally.steps == len(reports)
    assert tally.switches == sum(a.gamma != b.gamma for a, b in pairwise(reports))
    assert tally.tokens == sum(int(report.emitted[report.live].sum()) for report in reports)
    for name in ("drafted", "verified", "accepted"):
        live = [count for report in reports for count in getattr(report, name)[report.live].tolist()]
        assert total(getattr(tally, name)) == sum(live)
        above = [sum(count > depth for count in live) for depth in range(5)]
        assert list(reached(getattr(tally, name)))[:5] + [0] * (5 - len(reached(getattr(tally, name)))) == above


def test_tally_copies_what_it_is_given() -> None:
    tally, (report,) = Tally(5), random_reports([50], max_gamma=5)
    tally.add(replace(report, lossy_accepted=np.ones(50, np.int64), divergence_spent=np.full(50, 0.5)))
    expected = int(report.emitted[report.live].sum())
    assert tally.lossy_accepted == int(report.live.sum()) == 2 * tally.divergence_spent
    report.emitted[:] = 0
    report.live[:] = False
    tally.fold()
    assert tally.tokens == expected
