"""Times the steps of an engine over batch, γ and context, to fit a cost model to.

The engine runs real steps through its public interface under a controller that asks for one γ after another. It should
be loaded with synthetic acceptance at rate 0: every draft is then full and every step adds one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from adaptive.contract import (
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    Engine,
    Needs,
    StepReport,
    StepView,
)
from adaptive.requests import Request, Sampling
from policies.cost import StepCost
from policies.cost_fit import StepSample, fit_cost, predicted_s
from policies.cost_tracker import sample_of

WARM_UP_STEPS = 1
HELD_OUT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Grid:
    """What is timed: every γ at every batch and context length, `rounds` times in turn."""

    batches: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (64, 256, 1024)
    gammas: tuple[int, ...] = (0, 1, 2, 3, 5, 7)
    rounds: int = 4

    def __post_init__(self) -> None:
        for name, values, least in (("batches", self.batches, 1), ("contexts", self.contexts, 2)):
            if not values or min(values) < least:
                raise ValueError(f"{name}={list(values)} is not valid: give numbers of {least} or above")
        if 0 not in self.gammas or max(self.gammas) < 1 or min(self.gammas) < 0:
            raise ValueError(f"gammas={list(self.gammas)} is not valid: give 0 (plain decode) and at least one above")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} is not valid: give 1 or more")

    @property
    def cells(self) -> list[tuple[int, int]]:
        return list(product(self.batches, self.contexts))

    def require(self, caps: Capabilities) -> None:
        """ValueError for what the engine can not run."""
        missing = sorted(set(self.gammas) - set(caps.gammas))
        if missing:
            raise ValueError(f"gammas={missing} are not offered by this engine: choose from {list(caps.gammas)}")
        if max(self.batches) > caps.batch_buckets[-1]:
            raise ValueError(f"batch {max(self.batches)} is more than the engine holds: {caps.batch_buckets[-1]}")


class Stopwatch:
    """A `Controller` that asks for `gamma` and, while `batch` is set, keeps samples of steps of just that batch.

    Where drafters tell their confidence and an engine drafts token by token, it is told and asked after each of them:
    so do the policies that read a profile, and it is part of what a token costs them.
    """

    def __init__(self, gammas: Sequence[int]) -> None:
        self.gamma = 0
        self.batch: int | None = None
        self.samples: list[StepSample] = []
        self.decoding = 0
        self._gammas = tuple(sorted({0, *gammas}))
        self._views: dict[int, StepView] = {}

    def attach(self, caps: Capabilities) -> Needs:
        told = any("top_prob" in drafter.signals for drafter in caps.drafters.values())
        return Needs(
            {bucket: self._gammas for bucket in caps.batch_buckets},
            signals=frozenset({"top_prob"}) if told else frozenset(),
            stepwise=told and caps.stepwise,
            self_paced=True,
        )

    def plan(self, view: StepView) -> Decision:
        self.decoding = 0 if view.num_prefill_tokens else view.num_decode
        self._views[view.step] = view
        return Decision(self.gamma, reason="profile")

    def extend(self, progress: DraftProgress) -> BoolArray:
        return np.ones(len(progress.rows), np.bool_)

    def trim(self, progress: DraftProgress) -> None:
        """All that was drafted is verified."""

    def report(self, report: StepReport) -> None:
        view = self._views.pop(report.step, None)
        if view is None or report.gamma != self.gamma or len(report.rows) != self.batch:
            return
        sample = sample_of(view, report)
        if sample is not None:
            self.samples.append(sample)

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""


Progress = Callable[[str], None]


def profile_steps(
    engine: Engine, grid: Grid, prompt: Callable[[int], Sequence[int]], progress: Progress
) -> list[StepSample]:
    """Timed steps of every cell of the grid. `prompt(n)` gives n token ids; ValueError for what does not fit."""
    grid.require(engine.capabilities())
    stopwatch = Stopwatch(grid.gammas)
    engine.attach(stopwatch)
    for batch, context in grid.cells:
        progress(f"batch {batch}, context {context}")
        time_cell(engine, stopwatch, batch, prompt(context), list(gamma_order(grid.gammas, grid.rounds)))
    return stopwatch.samples


def time_cell(
    engine: Engine, stopwatch: Stopwatch, batch: int, prompt: Sequence[int], gammas: Sequence[int]
) -> list[StepSample]:
    """Times one step at each of `gammas`, in that order, of so many requests with one prompt; returns the new samples.

    Each is run once more beforehand: a switch of γ may capture graphs, and it drafts anew.
    """
    known = len(stopwatch.samples)
    most = sum((1 + WARM_UP_STEPS) * (gamma + 1) for gamma in gammas) + 8  # if everything is accepted
    sampling = Sampling(max_tokens=most, ignore_eos=True)
    requests = [engine.submit(Request(prompt, sampling)) for _ in range(batch)]
    try:
        _fill(engine, stopwatch, batch)
        for gamma in gammas:
            _time(engine, stopwatch, batch, gamma)
    finally:
        stopwatch.batch = None
        for request in requests:
            engine.cancel(request)
        engine.step()
    return stopwatch.samples[known:]


def held_out_error(samples: Sequence[StepSample], caps: Capabilities) -> float:
    """Median relative error at shapes the fit has not seen: every fifth (batch, γ, context) is left out.

    nan where too little is left to fit.
    """
    shapes = sorted({_shape(one) for one in samples})
    hidden = set(shapes[2::HELD_OUT_EVERY])
    seen = [one for one in samples if _shape(one) not in hidden]
    held = [one for one in samples if _shape(one) in hidden]
    if not held or not any(one.gamma for one in seen):
        return float("nan")
    cost = _fit(seen, caps)
    return float(np.median([abs(predicted_s(cost, one) / one.total_s - 1) for one in held]))


def fit_profile(samples: Sequence[StepSample], caps: Capabilities, label: str) -> StepCost:
    """The cost model of this engine."""
    return replace(_fit(samples, caps), identity=caps.identity, label=label)


def _fit(samples: Sequence[StepSample], caps: Capabilities) -> StepCost:
    """With everything rounded up to what the engine has captured."""
    return fit_cost(samples, batches=caps.batch_buckets, widths=caps.packed_widths, contexts=caps.context_widths)


def _shape(sample: StepSample) -> tuple[int, int, int]:
    """Cells are told apart by the size of the context, which grows by a token a step."""
    return sample.batch, sample.gamma, (sample.context // sample.batch).bit_length()


def _fill(engine: Engine, stopwatch: Stopwatch, batch: int) -> None:
    """Step until all prompts are done and all rows decode."""
    stopwatch.gamma, stopwatch.decoding = 0, 0
    while stopwatch.decoding < batch:
        if any(output.finished for output in engine.step()):
            raise ValueError("a request ended before all of its batch decoded: raise the context length")


def gamma_order(gammas: Sequence[int], rounds: int) -> Iterator[int]:
    """Every γ once a round, up and down in turn, so that drift of the machine hits all alike."""
    for round_ in range(rounds):
        yield from gammas if round_ % 2 == 0 else gammas[::-1]


def _time(engine: Engine, stopwatch: Stopwatch, batch: int, gamma: int) -> None:
    stopwatch.gamma, stopwatch.batch = gamma, None
    for _ in range(WARM_UP_STEPS):
        engine.step()
    stopwatch.batch = batch
    engine.step()
    stopwatch.batch = None
