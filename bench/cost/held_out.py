"""Steps that a profile has not seen, timed on the engine, and how far off its predictions are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from adaptive.contract import Engine
from adaptive.profiling import Grid, Stopwatch, time_cell
from policies.cost import StepCost
from policies.cost_fit import StepSample, predicted_s

TIMES = 2
"""How often each point is timed: the two tell what no model could foretell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests side by side, tokens each of them has read, and the γ to time there."""

    batch: int
    context: int
    gammas: tuple[int, ...]


def draw_cells(grid: Grid, count: int, seed: int) -> list[Cell]:
    """Within the grid's bounds, none on it: a batch, a context and four different γ each, drawn evenly.

    Contexts are drawn evenly in their logarithm, so that short ones are not rare. Every batch occurs about as often.
    """
    rng = np.random.default_rng(seed)
    batches = range(min(grid.batches), max(grid.batches) + 1)
    low, high = math.log(min(grid.contexts)), math.log(max(grid.contexts))
    cells = []
    for place in range(count):
        if place % len(batches) == 0:
            order = rng.permutation(batches).tolist()
        context = round(math.exp(rng.uniform(low, high)))
        gammas = rng.permutation(max(grid.gammas) + 1)[:4].tolist()
        batch = order[place % len(batches)]
        on_grid = batch in grid.batches and context in grid.contexts
        cells.append(Cell(batch, context + on_grid, tuple(gammas)))
    return cells


def time_cells(
    engine: Engine,
    cells: Sequence[Cell],
    prompt: Callable[[int], Sequence[int]],
    progress: Callable[[str], None],
) -> list[StepSample]:
    """Each cell's γ in turn, then once more in reverse."""
    stopwatch = Stopwatch([gamma for cell in cells for gamma in cell.gammas])
    engine.attach(stopwatch)
    for cell in cells:
        progress(f"batch {cell.batch}, context {cell.context}")
        time_cell(engine, stopwatch, cell.batch, prompt(cell.context), [*cell.gammas, *cell.gammas[::-1]])
    return stopwatch.samples


@dataclass(frozen=True, slots=True)
class Errors:
    """|predicted / measured - 1|: median and 90th percentile; nan without a sample."""

    count: int
    median: float
    p90: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Errors:
        """From predicted over measured; what was not timed (nan) is left out."""
        errors = [abs(ratio - 1) for ratio in ratios if not math.isnan(ratio)]
        if not errors:
            return cls(0, float("nan"), float("nan"))
        median, p90 = np.percentile(errors, [50, 90]).tolist()
        return cls(len(errors), median, p90)


def errors_by_piece(cost: StepCost, samples: Sequence[StepSample]) -> dict[str, Errors]:
    """Of the whole step, of drafting, of all else where something was drafted, and of plain decoding.

    Drafting is judged as a share of its step: of an n-gram drafter it is next to nothing, and so is an error there.
    """
    drafted, plain = [one for one in samples if one.gamma], [one for one in samples if not one.gamma]
    return {
        "whole step": Errors.of(predicted_s(cost, one) / one.total_s for one in samples),
        "drafting, of the step": Errors.of(
            1 + (cost.draft_s(one.batch, one.gamma, one.context) - one.draft_s) / one.total_s for one in drafted
        ),
        "verification": Errors.of(
            cost.verify_s(one.batch, one.tokens, one.context) / one.rest_s if one.rest_s > 0 else float("nan")
            for one in drafted
        ),
        "plain decoding": Errors.of(predicted_s(cost, one) / one.total_s for one in plain),
    }


def errors_by_batch(cost: StepCost, samples: Sequence[StepSample]) -> dict[int, Errors]:
    """Of the whole step."""
    ordered = sorted(samples, key=lambda one: one.batch)
    return {
        batch: Errors.of(predicted_s(cost, one) / one.total_s for one in group)
        for batch, group in groupby(ordered, key=lambda one: one.batch)
    }


def noise(cells: Sequence[Cell], samples: Sequence[StepSample]) -> Errors:
    """How far the two times of a point are from their mean: no model does better than that."""
    ratios, start = [], 0
    for cell in cells:
        size = TIMES * len(cell.gammas)
        times = [one.total_s for one in samples[start : start + size]]
        start += size
        for first, second in zip(times, times[::-1], strict=True):
            ratios.append(2 * first / (first + second))
    return Errors.of(ratios)
