"""Steps that a profile has not seen, timed on the engine, and how far off its predictions are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from adaptive.contract import Engine
from adaptive.profiling import Grid, Stopwatch, gamma_order, time_cell
from policies.cost import StepCost
from policies.cost_fit import StepSample, predicted_s


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


@dataclass(frozen=True, slots=True)
class Timed:
    """The profile's steps by cell and visit; held-out ones by cell: every γ in turn, then once more in reverse."""

    visits: dict[tuple[int, int], list[list[StepSample]]]
    held: list[list[StepSample]]

    @property
    def profiled(self) -> list[StepSample]:
        return [one for visits in self.visits.values() for samples in visits for one in samples]

    @property
    def all_held(self) -> list[StepSample]:
        return [one for samples in self.held for one in samples]


def time_both(
    engine: Engine,
    grid: Grid,
    cells: Sequence[Cell],
    prompt: Callable[[int], Sequence[int]],
    progress: Callable[[str], None],
) -> Timed:
    """The profile's cells and the held-out ones in one shuffled order, the profile's twice with half of its rounds.

    So both meet the same machine: one that has become faster or slower since the profile is not what is asked about.
    """
    stopwatch = Stopwatch([*grid.gammas, *(gamma for cell in cells for gamma in cell.gammas)])
    engine.attach(stopwatch)
    timed = Timed({cell: [[], []] for cell in grid.cells}, [[] for _ in cells])
    halves = (grid.rounds + 1) // 2, grid.rounds // 2
    for visit in visits(grid, len(cells)):
        if isinstance(visit, int):
            cell = cells[visit]
            batch, context, gammas = cell.batch, cell.context, [*cell.gammas, *cell.gammas[::-1]]
            kept = timed.held[visit]
        else:
            (batch, context), half = visit
            gammas, kept = list(gamma_order(grid.gammas, halves[half])), timed.visits[batch, context][half]
        progress(f"batch {batch}, context {context}")
        kept += time_cell(engine, stopwatch, batch, prompt(context), gammas)
    return timed


def visits(grid: Grid, count: int) -> list[int | tuple[tuple[int, int], int]]:
    """Places of held-out cells, and cells of the profile with the half of their rounds, in a shuffled order."""
    rng = np.random.default_rng(7)
    order: list[int | tuple[tuple[int, int], int]] = []
    for half in range(2):
        part = [*range(half, count, 2), *((cell, half) for cell in grid.cells)]
        order += [part[place] for place in rng.permutation(len(part))]
    return order


class Errors(NamedTuple):
    """|predicted / measured - 1|: median and 90th percentile; nan without a sample."""

    steps: int
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


def noise(held: Sequence[Sequence[StepSample]]) -> Errors:
    """How far the two times of a point are from their mean: no model does better than that."""
    pairs = [
        (first.total_s, second.total_s)
        for samples in held
        for first, second in zip(samples, samples[::-1], strict=True)
    ]
    return Errors.of(2 * first / (first + second) for first, second in pairs)


def drift(timed: Timed) -> Errors:
    """How far the profile's two visits of a point, minutes apart, are from their mean: the machine's own unrest."""
    ratios = []
    for first, second in timed.visits.values():
        for gamma in {one.gamma for one in first} & {one.gamma for one in second}:
            early, late = (
                float(np.mean([one.total_s for one in visit if one.gamma == gamma])) for visit in (first, second)
            )
            ratios += [2 * early / (early + late), 2 * late / (early + late)]
    return Errors.of(ratios)
