"""What control costs per decode step: building the view, `plan`, `extend`, building the report, learning from it.

    python bench/controller_overhead.py [--batches 64,256] [--steps N] [--rounds N] [--json FILE]

The controller is the real one and the views and reports are built by the bundled engine's own observer; only the
model is missing. SGLang's own policy class runs in the same rounds; it is handed plain lists and sees no view. `empty`
always decides the same and learns nothing: the price of being asked.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT, CpuMeter, machine_facts
from adaptive.contract import Policy
from adaptive.lists import whole_numbers
from bench.control.arms import COST, MAX_GAMMA, PIECES, Arm, Cost, Rig
from bench.control.empty import Empty
from bench.control.trace import DIFFERENT_STEPS, Trace
from bench.sglang_oracle import Oracle, OracleUnavailableError, load
from bench.usage import usage
from policies import AdaSD, AdaSpec, EmaTiers, Fixed

POLICIES: dict[str, tuple[Callable[[], Policy], bool]] = {
    "empty": (Empty, False),
    "fixed:1": (lambda: Fixed(1), False),
    "ema": (EmaTiers, False),
    "ema-sglang": (EmaTiers.sglang, False),
    "adaspec": (lambda: AdaSpec(cost=COST), False),
    "adaspec, step by step": (lambda: AdaSpec(cost=COST), True),
    "adaspec without cost": (AdaSpec, False),
    "adasd:lossless": (lambda: AdaSD(generation_only=True), False),
    "adasd v1": (lambda: AdaSD(version="v1"), False),
    "adasd v2": (AdaSD, False),
}
"""By name: how to make it, and whether the engine asks between draft tokens."""
THEIRS = "SGLang 0.5.23"
EMA_TARGET_US = 30.0
TARGETS = (("view_plan", "median", 60.0), ("extend", "median", 20.0), ("learn", "mean", 60.0))
"""At the largest batch of AdaSpec and AdaSD; learning is amortised, so its mean counts."""
TARGET_BATCH, EMA_BATCH = 256, 64


def sglang_arm(oracle: Oracle, trace: Trace, batch: int) -> Arm:
    """SGLang's own class as its scheduler calls it."""
    params = oracle.params(3, None)
    lists = {gamma: [run.clip(max=gamma).tolist() for run in trace.runs_SB] for gamma in range(MAX_GAMMA + 1)}

    def step(k: int) -> Cost:
        start = perf_counter_ns()
        gamma = params.get_steps_for_batch(batch)
        planned = perf_counter_ns()
        counts = lists[gamma][k % DIFFERENT_STEPS]
        made = perf_counter_ns()
        params.on_verify_complete(counts, batch)
        return {"plan": planned - start, "learn": perf_counter_ns() - made}

    return Arm(THEIRS, step)


def arms(batch: int, names: list[str], console: Console) -> list[Arm]:
    """All that can be measured here; says what can not."""
    trace = Trace.drawn(batch, MAX_GAMMA)
    found = [Arm(name, Rig(POLICIES[name][0](), trace, batch, stepwise=POLICIES[name][1]).step) for name in names]
    try:
        found.append(sglang_arm(load(), trace, batch))
    except OracleUnavailableError as error:
        console.print(f"[yellow]without {THEIRS}: {error}[/yellow]")
    return found


def measure(found: list[Arm], steps: int, rounds: int) -> float:
    """Rounds of all arms in turn, the first one thrown away; returns the share of CPU that others used."""
    collecting = gc.isenabled()
    with CpuMeter() as meter:
        for round_ in range(rounds + 1):
            for arm in found:
                gc.collect()
                gc.disable()  # as `timeit` does: what is collected is mostly the figures kept here
                costs = [arm.step(k) for k in range(round_ * steps, (round_ + 1) * steps)]
                arm.costs += costs if round_ else []
                if collecting:
                    gc.enable()
    return meter.foreign


def show(results: list[dict[str, Any]], batch: int, foreign: float, console: Console) -> None:
    """One line per arm."""
    table = Table(title=f"control cost per step at batch {batch}, µs: median (mean for learn), 10th–90th percentile")
    for column in ("policy", *PIECES, "all"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for line in results:
        table.add_row(
            line["policy"], *(_cell(line[name], "mean" if name == "learn" else "median") for name in (*PIECES, "all"))
        )
    console.print(table)
    quiet = "" if foreign <= FOREIGN_CPU_LIMIT else ": not a quiet machine, the figures are too high"
    console.print(f"{foreign:.0%} of the CPUs were used by other processes{quiet}")
    for text in verdicts(results, batch):
        console.print(text)


def _cell(figures: dict[str, float] | None, which: str) -> str:
    if figures is None:
        return "–"
    return f"{figures[which]:.1f} ({figures['p10']:.1f}–{figures['p90']:.1f})"


def verdicts(results: list[dict[str, Any]], batch: int) -> list[str]:
    """One sentence for each target at this batch size."""
    texts = []
    for line in results:
        name = line["policy"]
        if batch == EMA_BATCH and name == "ema":
            texts.append(_verdict(name, "all", line["all"]["median"], EMA_TARGET_US))
        if batch == TARGET_BATCH and name.startswith("ada"):
            for piece, which, target in TARGETS:
                if line[piece] is not None:
                    texts.append(_verdict(name, piece, line[piece][which], target))
    return texts


def _verdict(name: str, piece: str, us: float, target: float) -> str:
    return f"{name}, {piece}: {us:.1f} µs, target {target:.0f} µs: {'met' if us <= target else 'missed'}"


def _names(text: str | None) -> list[str]:
    names = list(POLICIES) if text is None else [part.strip() for part in text.split(";")]
    unknown = sorted(set(names) - set(POLICIES))
    if unknown:
        raise typer.BadParameter(f"{unknown} are not measured here: choose from {list(POLICIES)}, separated by ';'")
    return names


def main(
    batches: Annotated[str, typer.Option(help="batch sizes, separated by commas")] = "64,256",
    policies: Annotated[str | None, typer.Option(help="some of the policies, separated by semicolons")] = None,
    steps: Annotated[int, typer.Option(min=1, help="steps per policy and round")] = 250,
    rounds: Annotated[int, typer.Option(min=1, help="interleaved rounds")] = 12,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Measure what the controller costs per step."""
    console = Console()
    records = []
    with usage():
        sizes = whole_numbers("--batches", batches, least=1)
    for batch in sizes:
        found = arms(batch, _names(policies), console)
        foreign = measure(found, steps, rounds)
        results = [arm.summary() for arm in found]
        show(results, batch, foreign, console)
        records.append({"batch": batch, "foreign_cpu": round(foreign, 3), "arms": results})
    if json_file is not None:
        record = {"machine": machine_facts({}), "steps": steps * rounds, "batches": records}
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
