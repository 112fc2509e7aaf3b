"""How well the profiled cost model foretells steps that it has not seen.

    python bench/cost_model.py [--quick] [--tiny] [--drafter NAME --draft-model NAME] [--json FILE]

Profiles the bundled engine as `adaptive profile` does, times steps at random batches, γ and contexts off the profile's
grid in between, and compares. The target is a median error of 10 % on a quiet machine. What no model could foretell is
printed beside: how far two times of one point are from their mean, seconds apart and minutes apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive.benchmark import built_in_prompts
from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT, CpuMeter, machine_facts
from adaptive.cli.options import engine_options
from adaptive.cli.render import Steps
from adaptive.cli.session import TextEngine, load
from adaptive.contract import Engine
from adaptive.profiling import Grid, fit_profile, held_out_error
from bench.cost.held_out import draw_cells, drift, errors_by_batch, errors_by_piece, noise, time_both
from bench.cost.tiny import tiny_engine
from policies.cost import StepCost
from policies.cost_fit import StepSample, median_error

TARGET = 0.10
GRID = Grid()
QUICK = Grid(batches=(1, 4, 8), contexts=(64, 512), gammas=(0, 1, 3, 7), rounds=2)
TINY = Grid(contexts=(16, 64, 256))
CELLS, QUICK_CELLS = 24, 8

Prompt = Callable[[int], Sequence[int]]


def open_engine(model: str, drafter: str, draft_model: str | None, threads: int | None) -> tuple[Engine, Prompt]:
    """As `adaptive profile` opens it: every draft full, none accepted."""
    batch = max(GRID.batches)
    options = engine_options(model, None, drafter, draft_model, batch, None, "float32", "cpu", threads)
    engine = load(options.with_synthetic(0.0, None, None))
    return engine, _text(engine)


def _text(engine: TextEngine) -> Prompt:
    ids = engine.tokenizer.encode("\n".join(str(item.prompt) for item in built_in_prompts()))
    return lambda length: np.resize(ids, length).tolist()


def show(record: dict[str, Any], console: Console) -> None:
    """Errors by piece and by batch."""
    for title, key in (("piece", "by_piece"), ("batch", "by_batch")):
        table = Table(title=f"held-out step times: |predicted / measured − 1| by {title}")
        for column in (title, "steps", "median", "p90"):
            table.add_column(column, justify="left" if column == title else "right")
        for name, errors in record[key].items():
            table.add_row(str(name), str(errors["steps"]), f"{errors['median']:.1%}", f"{errors['p90']:.1%}")
        console.print(table)
    whole, spread, unrest = record["by_piece"]["whole step"], record["noise"], record["drift"]
    console.print(
        f"fit {record['fit_error']:.1%}, at shapes of the profile left out of it {record['profile_held_out']:.1%}; "
        f"from the mean of two times of one point, seconds apart {spread['median']:.1%}, "
        f"minutes apart {unrest['median']:.1%}"
    )
    quiet = "" if record["foreign_cpu"] <= FOREIGN_CPU_LIMIT else ": not a quiet machine"
    console.print(f"{record['foreign_cpu']:.0%} of the CPUs were used by other processes{quiet}")
    verdict = "met" if whole["median"] <= TARGET else "missed"
    console.print(f"median error {whole['median']:.1%}, target {TARGET:.0%}: {verdict}")


def figures(cost: StepCost, profiled: list[StepSample], held: list[StepSample]) -> dict[str, Any]:
    """The model, and its errors on what it was and was not fitted to."""
    return {
        "label": cost.label,
        "profile_samples": len(profiled),
        "fit_error": median_error(cost, profiled),
        "by_piece": {name: errors._asdict() for name, errors in errors_by_piece(cost, held).items()},
        "by_batch": {batch: errors._asdict() for batch, errors in errors_by_batch(cost, held).items()},
        "cost": {key: value for key, value in asdict(cost).items() if key != "identity"},
    }


def main(
    quick: Annotated[bool, typer.Option("--quick", help="a small grid and few points")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="a tiny model with random weights, to try this out")] = False,
    model: Annotated[str, typer.Option(help="a known model's name or a Hugging Face folder")] = "smollm2-135m",
    drafter: Annotated[str, typer.Option(help="as for `adaptive profile`")] = "ngram",
    draft_model: Annotated[str | None, typer.Option(help="as for `adaptive profile`")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads", show_default="all cores")] = None,
    seed: Annotated[int, typer.Option(help="of the points that are drawn")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Measure how well the profiled cost model foretells steps that it has not seen."""
    grid = TINY if tiny else QUICK if quick else GRID
    cells = draw_cells(grid, QUICK_CELLS if quick else CELLS, seed)
    engine, prompt = tiny_engine(max(grid.batches)) if tiny else open_engine(model, drafter, draft_model, threads)
    with CpuMeter() as meter, Steps("profile and held-out steps", 2 * len(grid.cells) + len(cells)) as steps:
        timed = time_both(engine, grid, cells, prompt, steps.begin)
    caps = engine.capabilities()
    cost = fit_profile(timed.profiled, caps, label="tiny" if tiny else f"{model}, {drafter} drafter")
    record = figures(cost, timed.profiled, timed.all_held)
    record |= {"noise": noise(timed.held)._asdict(), "drift": drift(timed)._asdict()}
    record |= {"profile_held_out": held_out_error(timed.profiled, caps), "seconds": round(meter.seconds, 1)}
    record |= {"foreign_cpu": round(meter.foreign, 3)}
    show(record, Console())
    if json_file is not None:
        record["machine"] = machine_facts({})
        record["steps"] = [[*_point(one), one.total_s, one.draft_s] for one in (*timed.profiled, *timed.all_held)]
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _point(sample: StepSample) -> tuple[int, int, int, int]:
    return sample.batch, sample.gamma, sample.tokens, sample.context


if __name__ == "__main__":
    typer.run(main)
