"""What a CPU user might pick instead: ours beside transformers and OpenVINO GenAI, at batch 1 and at batch 8.

    make bench-peers          # sets up .venv-peers, then runs this
    python bench/peers.py [--venv .venv-peers] [--max-tokens 64] [--repeat 3] [--json-folder FOLDER]

OpenVINO GenAI runs from an environment of its own on the same model, exported in float32, once with arithmetic and
cache in float32 and once as it sets itself up. What can not be had is named, and the rest is measured.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from rich.console import Console

from adaptive.benchmark.process import PeerError, started
from adaptive.lists import whole_numbers
from bench.usage import usage

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "bench" / "openvino_worker.py"
MODEL = "smollm2-135m"
POLICIES = "fixed:0,fixed:3,ema"
LOOKUP = 10  # as many as transformers-lookup drafts
EXACT = "f32"
RUN = "from adaptive.cli import main; main()"
TRIAL = [1, 2, 3, 4, 5, 6]


@dataclass(frozen=True, slots=True)
class Program:
    """One way to run the worker. `exact`: in float32 throughout."""

    label: str
    command: tuple[str, ...]
    lookup: bool
    exact: bool

    @property
    def option(self) -> str:
        return f"{self.label}={shlex.join(self.command)}"


def programs(python: Path, folder: Path, threads: int) -> list[Program]:
    """Plain and with prompt lookup, in float32 and as the library sets itself up."""
    base = (str(python), str(WORKER), str(folder), "--threads", str(threads))
    exact, lookup = ("--precision", EXACT), ("--lookup", str(LOOKUP))
    return [
        Program("openvino-f32", (*base, *exact), lookup=False, exact=True),
        Program("openvino-f32-lookup", (*base, *exact, *lookup), lookup=True, exact=True),
        Program("openvino-auto", base, lookup=False, exact=False),
        Program("openvino-auto-lookup", (*base, *lookup), lookup=True, exact=False),
    ]


def usable(found: Sequence[Program], console: Console) -> list[Program]:
    """Those that answer a trial prompt. The library's own settings are left out where they are float32 anyway."""
    chosen = []
    for program in found:
        start = perf_counter()
        try:
            with started(program.label, program.command) as process:
                process.decode([TRIAL], 2, [])
                facts = process.facts
        except PeerError as error:
            console.print(f"[yellow]without {program.label}:[/] ", end="")
            console.print(str(error), markup=False)
            continue
        defaults = facts.get("defaults")
        if not program.exact and isinstance(defaults, dict) and set(defaults.values()) == {EXACT}:
            console.print(f"without {program.label}: its own settings are {EXACT}, too")
            continue
        console.print(f"{program.label}: ready in {perf_counter() - start:.1f} s, {facts}", markup=False)
        chosen.append(program)
    return chosen


def find_programs(venv: Path, model: str, threads: int, console: Console) -> list[Program]:
    """What of OpenVINO GenAI can be measured here; says what can not be, and why."""
    from bench.openvino_model import OpenVinoMissingError, folder_mib, openvino_folder

    start = perf_counter()
    try:
        folder = openvino_folder(model, venv, lambda text: console.print(text, markup=False))
    except OpenVinoMissingError as error:
        console.print("[yellow]without OpenVINO GenAI:[/] ", end="")
        console.print(str(error), markup=False)
        return []
    took = f"exported model: {folder_mib(folder)} MiB, {perf_counter() - start:.1f} s; {venv}: {folder_mib(venv)} MiB"
    console.print(took, markup=False)
    return usable(programs(venv / "bin" / "python", folder, threads), console)


def bench_command(found: Sequence[Program], batch: int, arguments: Sequence[str]) -> list[str]:
    """Prompt lookup is for one prompt at a time, with transformers and here."""
    peers = "transformers,transformers-lookup" if batch == 1 else "transformers"
    taking_part = [program for program in found if batch == 1 or not program.lookup]
    options = [part for program in taking_part for part in ("--peer-program", program.option)]
    command = [sys.executable, "-c", RUN, "bench", "--policies", POLICIES, "--peers", peers]
    return [*command, "--max-batch", str(batch), *options, *arguments]


def main(
    venv: Annotated[Path, typer.Option(help="Environment that holds OpenVINO GenAI.")] = ROOT / ".venv-peers",
    model: Annotated[str, typer.Option(help="A known model's name, a GGUF file or a Hugging Face folder.")] = MODEL,
    prompts: Annotated[Path | None, typer.Option(help="JSONL file.", show_default="the built-in prompts")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer at most.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="How often each arm meets each group of prompts.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")] = None,
    batches: Annotated[str, typer.Option(help="Prompts side by side: one table each.")] = "1,8",
    json_folder: Annotated[Path | None, typer.Option(help="Write peers-batch-B.json there.")] = None,
) -> None:
    """Measure ours, transformers and OpenVINO GenAI beside each other on the same prompts and weights."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if json_folder is not None and not json_folder.is_dir():
        raise typer.BadParameter(f"--json-folder: {json_folder} is not there")
    with usage():
        widths = whole_numbers("--batches", batches, least=1)
    cores = threads or torch.get_num_threads()
    found = find_programs(venv, model, cores, console)
    arguments = ["--model", model, "--max-tokens", str(max_tokens), "--repeat", str(repeat), "--threads", str(cores)]
    arguments += ["--prompts", str(prompts)] if prompts is not None else []
    for batch in widths:
        console.rule(f"{batch} prompt{'s' if batch > 1 else ''} side by side")
        target = [] if json_folder is None else ["--json", str(json_folder / f"peers-batch-{batch}.json")]
        done = subprocess.run(bench_command(found, batch, [*arguments, *target]), check=False)
        if done.returncode:
            raise typer.Exit(done.returncode)


if __name__ == "__main__":
    typer.run(main)
