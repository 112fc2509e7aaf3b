"""Views and reports for policies, built without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from adaptive.contract import Capabilities, Policy, StepReport, StepView

CAPS = Capabilities(gammas=tuple(range(17)), batch_buckets=(1, 2, 4, 8, 16, 32, 64))


def view(num_decode: int, step: int = 0) -> StepView:
    """Every optional field unknown."""
    rows = np.arange(num_decode)
    return StepView(step, step - 1, float(step), num_decode, rows, rows + 10, rows + 1)


def report(
    accepted: Sequence[int],
    gamma: int,
    *,
    drafted: Sequence[int] | None = None,
    live: Sequence[bool] | None = None,
    step: int = 0,
) -> StepReport:
    """Every row live and drafting γ tokens unless said otherwise."""
    counts = np.array(accepted, dtype=np.int64)
    lens = np.full(len(counts), gamma) if drafted is None else np.array(drafted, dtype=np.int64)
    alive = np.ones(len(counts), np.bool_) if live is None else np.array(live, dtype=np.bool_)
    return StepReport(step, gamma, np.arange(len(counts)), alive, lens, lens, counts, counts + 1)


def feed(policy: Policy, accepted: Sequence[int], step: int = 0) -> int:
    """One step whose report comes at once; returns the γ that the step drafted."""
    before = view(len(accepted), step)
    decision = policy.decide(before)
    policy.learn(before, decision, report(accepted, decision.gamma, step=step))
    return decision.gamma


def switches(gammas: Sequence[int]) -> int:
    return sum(a != b for a, b in pairwise(gammas))
