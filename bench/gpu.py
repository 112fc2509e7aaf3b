"""First check on a GPU: CUDA graphs give what eager gives on tiny models, and no step waits for the device.

    python bench/gpu.py [--device cuda] [--tiny] [--json FILE]

γ, rows, contexts and samplers change at every step, so that bundles of many keys run after one another. Each engine
serves the same requests twice: once to record what it meets, once more under torch's synchronisation check, where the
one packed read of a step, an event, is the only wait that passes. With `--device cpu` the backends that stand in for
graphs, `replay` and `late`, are compared with eager. Ends with status 1 when anything differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from adaptive.benchmark.machine import machine_facts
from engine import EngineConfig, LLMEngine
from engine.drafters import NgramDrafter
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from tests.engine.course import Course, take_course
from tests.engine.tiny import TINY, random_weights

GAMMAS = (3, 0, 5, 1)
VARIANTS = {
    "llama": TINY,
    "all variants": replace(TINY, tie_embeddings=False, qkv_bias=True, qk_norm=True, sliding_window=7),
}
WIDER = ModelConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=512,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    context_len=128,
)


@dataclass(frozen=True, slots=True)
class Case:
    """What every backend is tried on."""

    name: str
    model: ModelConfig
    dtype: str
    rows: int
    device: str

    def engine(self, backend: str) -> LLMEngine:
        """Random weights, the same for every backend."""
        config = EngineConfig(
            max_batch=self.rows,
            context_len=96,
            max_gamma=max(GAMMAS),
            prefill_chunk=8,
            dtype=self.dtype,
            device=self.device,
            backend=backend,
            prefix_reuse=False,  # the second pass shall do what the first did
        )
        weights = random_weights(self.model, dtype=config.torch_dtype)
        decoder = Decoder(self.model, weights, config.context_len, config.device)
        return LLMEngine(decoder, config, drafter=NgramDrafter(config, min_match=1))


@dataclass(frozen=True, slots=True)
class Run:
    """One backend on one model; the first pass includes recording. `waits` is None where torch can not see them."""

    model: str
    dtype: str
    backend: str
    steps: int
    pieces: int
    first_s: float
    step_ms: float
    equal: bool
    waits: str | None

    @property
    def passed(self) -> bool:
        return self.equal and not self.waits


@contextmanager
def no_waiting(device: str) -> Iterator[list[str]]:
    """Inside, a synchronising call on a GPU raises; the list that it yields holds what was raised."""
    found: list[str] = []
    if not device.startswith("cuda"):
        yield found
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield found
    except RuntimeError as error:
        found.append(str(error))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check(case: Case, backend: str, expected: Course | None) -> tuple[Run, Course]:
    """Serve twice, and compare both courses with the expected one (the first one's own where there is none yet)."""
    engine = case.engine(backend)
    started = perf_counter()
    first = take_course(engine, GAMMAS)
    recorded_at = perf_counter()
    second = None
    with no_waiting(case.device) as waits:
        second = take_course(engine, GAMMAS)
    engine.runner.backend.synchronize()
    ended = perf_counter()
    run = Run(
        model=case.name,
        dtype=case.dtype,
        backend=backend,
        steps=len(first.steps),
        pieces=engine.runner.num_captured,
        first_s=round(recorded_at - started, 3),
        step_ms=round(1e3 * (ended - recorded_at) / len(first.steps), 3),
        equal=first == (expected or first) and second in (first, None),
        waits="; ".join(waits) if case.device.startswith("cuda") else None,
    )
    return run, first


def show(runs: list[Run], device: str, console: Console) -> None:
    """One line per backend and model."""
    table = Table(title=f"stage 1 on {device}: what graphs give against eager")
    for column in ("model", "backend", "steps", "pieces", "first s", "ms/step", "as eager", "no wait"):
        table.add_column(column, justify="left" if column in ("model", "backend") else "right")
    for run in runs:
        waits = "–" if run.waits is None else run.waits or "yes"
        numbers = (f"{run.steps}", f"{run.pieces}", f"{run.first_s:.2f}", f"{run.step_ms:.2f}")
        table.add_row(run.model, run.backend, *numbers, "yes" if run.equal else "[red]no[/red]", waits)
    console.print(table)
    if not device.startswith("cuda"):
        console.print("– on a CPU nothing waits: `late` shows a read that would have had to")


def main(
    device: Annotated[str, typer.Option(help="cuda, cuda:1, ... or cpu")] = "cuda",
    tiny: Annotated[bool, typer.Option("--tiny", help="the smallest models only")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    """Compare recorded steps with eager ones while everything changes, and look for waits."""
    console = Console()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"{device}: torch finds no CUDA device; --device cpu compares replay and late")
    cases = [Case(name, model, "float64", 2, device) for name, model in VARIANTS.items()]
    cases += [] if tiny else [Case("wider", WIDER, "float32", 4, device)]
    others = ("cuda",) if device.startswith("cuda") else ("replay", "late")
    runs: list[Run] = []
    for case in cases:
        eager, expected = check(case, "eager", None)
        runs += [eager, *(check(case, other, expected)[0] for other in others)]
    show(runs, device, console)
    if json_file is not None:
        record: dict[str, Any] = {"stage": 1, "device": device, "machine": machine_facts({})}
        record["runs"] = [asdict(run) | {"passed": run.passed} for run in runs]
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not all(run.passed for run in runs):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
