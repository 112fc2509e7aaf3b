"""The command line of `bench/engine.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from adaptive.benchmark.machine import CpuMeter, machine_facts
from adaptive.cli.render import Steps, stdout
from adaptive.lists import whole_numbers
from bench.forward.bed import Bed, Point
from bench.forward.claims import BATCH, GAMMA, judge, make_claims, points_of
from bench.forward.floors import make_probes
from bench.forward.measure import measure, point_cost, rate
from bench.forward.models import SHAPES, random_decoder, real_decoder
from bench.forward.report import Report
from bench.usage import usage
from engine import EngineConfig

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the three is a point."""

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]

    def points(self) -> list[Point]:
        return [
            Point.rectangle(batch, tokens, context)
            for batch in self.batches
            for tokens in self.tokens
            for context in self.contexts
        ]

    @property
    def claims_context(self) -> int:
        """The middle one."""
        return sorted(self.contexts)[len(self.contexts) // 2]

    def engine_config(self, dtype: str, device: str) -> EngineConfig:
        return EngineConfig(
            max_batch=max(*self.batches, BATCH),
            context_len=max(self.contexts),
            max_gamma=max(max(self.tokens) - 1, GAMMA),
            dtype=dtype,
            device=device,
            backend="cuda" if device.startswith("cuda") else "eager",
        )


def main(
    model: Annotated[
        str, typer.Option(help="A known model's name, a GGUF file or a Hugging Face folder.")
    ] = DEFAULT_MODEL,
    random: Annotated[str | None, typer.Option(metavar="SHAPE", help=f"Random weights: {', '.join(SHAPES)}.")] = None,
    batches: Annotated[str, typer.Option(help="Rows, separated by commas.")] = "1,8",
    tokens: Annotated[str, typer.Option(help="Tokens a row, the root included.")] = "1,4,8",
    contexts: Annotated[str, typer.Option(help="Tokens a row holds in the cache.")] = "128,512,1024",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds that count.")] = 20,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; cuda times the CUDA graphs.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")] = None,
    probe_mib: Annotated[int, typer.Option(min=1, help="Memory to stream, well above the last cache.")] = 512,
    probe_size: Annotated[int, typer.Option(min=1, help="Edge of the matrices to multiply.")] = 2048,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Time the engine's verify forward over batch × tokens per row × context, against floors measured beside it."""
    with usage():
        grid = Grid(
            whole_numbers("--batches", batches, least=1),
            whole_numbers("--tokens", tokens, least=1),
            whole_numbers("--contexts", contexts, least=1),
        )
    _check(grid, json_file)
    if threads is not None:
        torch.set_num_threads(threads)
    bed = _make_bed(grid, model, random, dtype, device)
    claims = make_claims(grid.claims_context)
    points = list(dict.fromkeys([*grid.points(), *points_of(claims)]))
    probes = make_probes(device, bed.config.torch_dtype, probe_mib, probe_size)
    with Steps("bench/engine.py", rounds + 1) as steps, CpuMeter() as meter:
        timings = measure(bed, points, probes, rounds, steps.begin)
    read, multiply = rate(probes, timings, "bytes"), rate(probes, timings, "flops")
    costs = [point_cost(bed, point, timings, read, multiply) for point in grid.points()]
    report = Report(read, multiply, costs, judge(claims, timings), meter.foreign)
    name = f"random {random}" if random else model
    report.show(stdout(), f"one verify forward, {name}, {dtype} on {_device_name(device)}, {rounds} rounds")
    if json_file is not None:
        facts = {"model": name, "dtype": dtype, "device": _device_name(device), "threads": torch.get_num_threads()}
        record = {"machine": machine_facts(facts), "rounds": rounds, "pieces": bed.pieces, **report.as_json()}
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _make_bed(grid: Grid, model: str, random: str | None, dtype: str, device: str) -> Bed:
    with usage():
        config = grid.engine_config(dtype, device)
        if random is not None:
            decoder = random_decoder(random, config.context_len, config.torch_dtype, device)
        else:
            with Steps(f"loading {model}") as steps:
                decoder = real_decoder(model, config.context_len, config.torch_dtype, device, steps.reached)
    return Bed(decoder, config)


def _check(grid: Grid, json_file: Path | None) -> None:
    widest = max(*grid.tokens, GAMMA + 1)
    if min(grid.contexts) < widest:
        raise typer.BadParameter(f"--contexts: {min(grid.contexts)} is too short for {widest} tokens a row")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"--json: the folder of {json_file} is not there")


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
