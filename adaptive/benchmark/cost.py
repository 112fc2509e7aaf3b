"""What drafting costs beside the target: times of a step's parts, as the engine reports them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from adaptive.benchmark.arms import Run


@dataclass(frozen=True, slots=True)
class StepCost:
    """Medians over the steps of an arm. nan where parts are not timed (on a GPU), or nothing was drafted.

    `draft_ms` is all the drafting of a step, what the drafter had to catch up included, `verify_ms` the target's pass
    over the draft tokens and the verdict. `ratio` is the time of drafting one token deeper over that of a plain step.
    """

    draft_ms: float
    verify_ms: float
    ratio: float


def step_cost(runs: Sequence[Run], plain: Sequence[Run]) -> StepCost:
    """`plain` are plain decoding's runs on the same prompts."""
    steps = [step for run in runs for step in run.steps]
    drafting = [step for step in steps if step.depth]
    deeper_ms = _median_ms(step.draft_s / step.depth for step in drafting)
    plain_ms = _median_ms(step.verify_s for run in plain for step in run.steps if not step.gamma)
    return StepCost(
        draft_ms=_median_ms(step.draft_s for step in drafting),
        verify_ms=_median_ms(step.verify_s for step in steps),
        ratio=deeper_ms / plain_ms if deeper_ms > 0 and plain_ms > 0 else math.nan,
    )


def _median_ms(seconds: Iterable[float]) -> float:
    known = [value for value in seconds if not math.isnan(value)]
    return 1e3 * median(known) if known else math.nan
