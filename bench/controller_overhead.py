"""What control costs per decode step at batch 64: building the view, `plan`, building and taking in the report.

    python bench/controller_overhead.py [--steps N] [--rounds N] [--json FILE]

The controller is the real one and the views and reports are built by the bundled engine's own observer; only the
model is missing. SGLang's own policy class runs in the same rounds; it is handed plain lists and sees no view.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, perf_counter_ns
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT, CpuMeter, machine_facts
from adaptive.check.toy import ToyEngine
from adaptive.contract import IntArray, Policy
from adaptive.controller import AdaptiveController
from adaptive.requests import Request
from bench.sglang_oracle import Oracle, OracleUnavailableError, load
from engine.observe import Observer
from policies import EmaTiers, Fixed

BATCH = 64
MAX_GAMMA = 16
TARGET_US = 30.0
OURS = ("fixed:1", "ema", "ema-sglang")
THEIRS = "SGLang 0.5.23"
PARTS = ("view", "plan", "report")


class Cost(NamedTuple):
    """Nanoseconds of one step."""

    view: int
    plan: int
    report: int


@dataclass
class Arm:
    """One policy under measurement: `step(k)` runs step k once."""

    name: str
    step: Callable[[int], Cost]
    costs: list[Cost] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Microseconds: the median of each part and of the whole, and the whole's spread."""
        ns_NP = np.array(self.costs)
        total_N = ns_NP.sum(axis=1) / 1e3
        low, median, high = np.percentile(total_N, [10, 50, 90])
        parts = dict(zip(PARTS, (np.median(ns_NP, axis=0) / 1e3).round(2).tolist(), strict=True))
        return {"policy": self.name, "us": round(median, 2), "p10": round(low, 2), "p90": round(high, 2), **parts}


def acceptance(rng: np.random.Generator, steps: int) -> dict[int, IntArray]:
    """Per γ `[steps, BATCH]`: accepted tokens of each row, the same for every arm."""
    runs = {gamma: rng.geometric(0.4, (steps, BATCH)) - 1 for gamma in range(MAX_GAMMA + 1)}
    return {gamma: np.minimum(run, gamma) for gamma, run in runs.items()}


def our_arm(name: str, policy: Policy, accepted: dict[int, IntArray]) -> Arm:
    """The whole control path of a batch of 64 decoding requests."""
    engine = ToyEngine(gammas=tuple(range(MAX_GAMMA + 1)), max_batch=BATCH)
    controller = AdaptiveController(engine, policy)
    observer = Observer(BATCH, perf_counter)
    batch: list[Any] = [
        SimpleNamespace(row=row, context_len=20, tokens=[], request=Request("x")) for row in range(BATCH)
    ]
    for request in batch:
        observer.seat(request)
    drafted = {gamma: np.full(BATCH, gamma) for gamma in accepted}

    def step(k: int) -> Cost:
        start = perf_counter_ns()
        view = observer.view(batch, 0, 0, 0.5, None)
        viewed = perf_counter_ns()
        gamma = controller.plan(view).gamma
        planned = perf_counter_ns()
        feedback: Any = SimpleNamespace(
            gamma=gamma,
            drafted=drafted[gamma],
            verified=drafted[gamma],
            accepted=accepted[gamma][k],
            draft_s=float("nan"),
            verify_s=float("nan"),
            signals=None,
        )
        made = perf_counter_ns()
        report = observer.report(view, feedback, 0)
        controller.report(report)
        done = perf_counter_ns()
        observer.advance(view, report)
        return Cost(viewed - start, planned - viewed, done - made)

    return Arm(name, step)


def sglang_arm(oracle: Oracle, accepted: dict[int, IntArray]) -> Arm:
    """SGLang's own class as its scheduler calls it."""
    params = oracle.params(3, None)
    lists = {gamma: run.tolist() for gamma, run in accepted.items()}

    def step(k: int) -> Cost:
        start = perf_counter_ns()
        gamma = params.get_steps_for_batch(BATCH)
        planned = perf_counter_ns()
        counts = lists[gamma][k]
        made = perf_counter_ns()
        params.on_verify_complete(counts, BATCH)
        return Cost(0, planned - start, perf_counter_ns() - made)

    return Arm(THEIRS, step)


def arms(accepted: dict[int, IntArray], console: Console) -> list[Arm]:
    """All that can be measured here; says what can not."""
    made: dict[str, Policy] = {"fixed:1": Fixed(1), "ema": EmaTiers(), "ema-sglang": EmaTiers.sglang()}
    found = [our_arm(name, policy, accepted) for name, policy in made.items()]
    try:
        found.append(sglang_arm(load(), accepted))
    except OracleUnavailableError as error:
        console.print(f"[yellow]without {THEIRS}: {error}[/yellow]")
    return found


def measure(found: list[Arm], steps: int, rounds: int) -> float:
    """Rounds of all arms in turn, the first one thrown away; returns the share of CPU that others used."""
    with CpuMeter() as meter:
        for round_ in range(rounds + 1):
            for arm in found:
                costs = [arm.step(k) for k in range(steps)]
                arm.costs += costs if round_ else []
    return meter.foreign


def show(results: list[dict[str, Any]], foreign: float, console: Console) -> None:
    """One line per arm."""
    table = Table(title=f"control cost per step at batch {BATCH}, µs (median; 10th to 90th percentile)")
    for column in ("policy", "view", "plan", "report", "all", "p10", "p90"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for line in results:
        values = [line[key] for key in (*PARTS, "us", "p10", "p90")]
        table.add_row(line["policy"], *(f"{value:.1f}" for value in values))
    console.print(table)
    quiet = "" if foreign <= FOREIGN_CPU_LIMIT else ": not a quiet machine, the figures are too high"
    console.print(f"{foreign:.0%} of the CPUs were used by other processes{quiet}")
    ema = next(line["us"] for line in results if line["policy"] == "ema")
    console.print(f"ema: {ema:.1f} µs, target {TARGET_US:.0f} µs: {'met' if ema <= TARGET_US else 'missed'}")


def main(
    steps: Annotated[int, typer.Option(min=1, help="steps per policy and round")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="interleaved rounds")] = 20,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Measure what the controller costs per step at batch 64."""
    console = Console()
    found = arms(acceptance(np.random.default_rng(0), steps), console)
    foreign = measure(found, steps, rounds)
    results = [arm.summary() for arm in found]
    show(results, foreign, console)
    if json_file is not None:
        record = {"machine": machine_facts({}), "batch": BATCH, "foreign_cpu": round(foreign, 3), "arms": results}
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
