"""Held-out points, errors by hand, and the benchmark itself on a tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adaptive.profiling import Grid
from bench.cost.held_out import Errors, Timed, draw_cells, drift, errors_by_batch, errors_by_piece, noise, visits
from bench.cost_model import main
from policies.cost import StepCost
from policies.cost_fit import StepSample

COST = StepCost(draft=(0.1, 0, 0, 0), verify=(1.0, 0, 0.1, 0, 0), plain=(1.0, 0, 0))
"""Seconds: γ / 10, 1 + tokens / 10, 1."""


def test_points_are_within_the_profiles_bounds_and_off_its_grid() -> None:
    grid = Grid(batches=(2, 5), contexts=(64, 512), gammas=(0, 4))
    cells = draw_cells(grid, 200, seed=1)
    assert {cell.batch for cell in cells} == {2, 3, 4, 5}
    assert all(64 <= cell.context <= 513 and len(set(cell.gammas)) == 4 for cell in cells)
    assert {gamma for cell in cells for gamma in cell.gammas} == {0, 1, 2, 3, 4}
    assert not any(cell.batch in grid.batches and cell.context in grid.contexts for cell in cells)
    assert cells == draw_cells(grid, 200, seed=1)
    short = sum(cell.context < 181 for cell in cells)  # the middle in logarithms
    assert 70 < short < 130


def test_errors_by_hand() -> None:
    samples = [
        StepSample(1, 0, 1, 10, step_s=0.8),  # 1 / .8 = 1.25
        StepSample(1, 2, 3, 10, step_s=2.0, draft_s=0.4),  # .2 + 1.3 = 1.5 of 2
        StepSample(2, 1, 4, 10, step_s=1.5, draft_s=0.1),  # .1 + 1.4 = 1.5 of 1.5
    ]
    pieces = errors_by_piece(COST, samples)
    assert pieces["whole step"].median == pytest.approx(0.25)  # of .25, .25, 0
    assert pieces["plain decoding"] == pytest.approx((1, 0.25, 0.25))
    # (.2 - .4) / 2 = -.1 and 0
    assert pieces["drafting, of the step"].median == pytest.approx(0.05)
    # 1.3 / 1.6 = .8125 and 1.4 / 1.4
    assert pieces["verification"].median == pytest.approx(0.1875 / 2)
    by_batch = errors_by_batch(COST, samples)
    assert [by_batch[batch].median for batch in (1, 2)] == pytest.approx([0.25, 0])
    assert math.isnan(Errors.of([]).median)


def test_noise_is_how_far_two_times_of_a_point_are_apart() -> None:
    # γ = 0 takes 1 and 3, γ = 3 takes 2 and 2: half of 3 - 1 over the mean 2, and 0
    times = [(0, 1.0), (3, 2.0), (3, 2.0), (0, 3.0)]
    samples = [StepSample(1, gamma, 1 + gamma, 10, step_s=seconds) for gamma, seconds in times]
    assert noise([samples]) == pytest.approx((4, 0.25, 0.5))


def test_drift_is_how_far_two_visits_are_apart() -> None:
    def visit(*seconds: float) -> list[StepSample]:
        return [StepSample(1, gamma, 1 + gamma, 10, step_s=one) for gamma, one in enumerate(seconds)]

    # γ = 0 takes 1 and 3: half of 3 - 1 over the mean 2; γ = 1 takes 2 and 2
    timed = Timed({(1, 10): [visit(1.0, 2.0), visit(3.0, 2.0)]}, [])
    assert drift(timed) == pytest.approx((4, 0.25, 0.5))
    assert len(timed.profiled) == 4


def test_every_cell_of_the_profile_is_visited_twice_and_held_out_ones_lie_between() -> None:
    grid = Grid(batches=(1, 2), contexts=(64, 256))
    order = visits(grid, 6)
    assert sorted(visit for visit in order if isinstance(visit, int)) == [0, 1, 2, 3, 4, 5]
    assert sorted(visit for visit in order if not isinstance(visit, int)) == [
        (cell, half) for cell in grid.cells for half in range(2)
    ]
    assert {type(visit) for visit in order[:7]} == {type(visit) for visit in order[7:]} == {int, tuple}


def test_it_runs_on_a_tiny_model_and_writes_what_it_found(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    out = tmp_path / "cost.json"
    ended = CliRunner().invoke(app, ["--tiny", "--quick", "--json", str(out)])
    assert ended.exit_code == 0, ended.output
    assert "target 10%" in ended.output
    record = json.loads(out.read_text())
    assert record["by_piece"]["whole step"]["steps"] == 8 * 4 * 2
    assert set(record["by_batch"]) == {str(batch) for batch in range(1, 9)}
    assert len(record["steps"]) == record["profile_samples"] + 64
    assert record["noise"]["median"] >= 0
