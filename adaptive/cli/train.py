"""`adaptive train`: a drafter for a model, from text that the model writes itself or that the user has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from adaptive.cli import options as o
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.render import MISSING, print_json, stderr, stdout, table

if TYPE_CHECKING:
    from engine.train.evaluate import Acceptance
    from engine.train.loop import Look
    from engine.train.session import Listener, Outcome, Recipe

METHODS = ("eagle1", "eagle3", "medusa", "mtp", "draft")
SHIPPED, FRESH = "shipped", "none"

Method = Annotated[str, typer.Option("--method", help=f"What to train, one of: {', '.join(METHODS)}.")]
Target = Annotated[str, typer.Option("--target", help="The model to draft for: a known name, a GGUF file, a folder.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="A folder of text files, a text file, an .npz from an earlier run, or `self`; repeatable.",
        show_default="self",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the drafter.")]
Minutes = Annotated[float, typer.Option("--minutes", min=0.05, help="Time in all, text included.")]
From = Annotated[
    str,
    typer.Option("--from", help="Folder of a drafter to go on from; `shipped` is the package's own where it has one."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted in --out.")]
Joint = Annotated[bool, typer.Option("--joint", help="With medusa: tune a copy of the model too (Medusa-2).")]
Length = Annotated[int, typer.Option("--length", min=16, help="Tokens a piece of text is cut into.")]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", min=64, help="Tokens a step.")]
DraftVocab = Annotated[
    int, typer.Option("--draft-vocab", min=1, help="Tokens that the drafter can say: the commonest.")
]
Rate = Annotated[float, typer.Option("--rate", min=0.0, help="Largest step size.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed draws the same text and weights.")]


def train(
    method: Method = "eagle3",
    target: Target = o.DEFAULT_MODEL,
    data: Data = None,
    out: Out = Path("drafter"),
    minutes: Minutes = 10.0,
    start: From = SHIPPED,
    resume: Resume = False,
    joint: Joint = False,
    length: Length = 256,
    batch_tokens: BatchTokens = 2048,
    draft_vocab: DraftVocab = 8192,
    rate: Rate = 1e-3,
    seed: Seed = 0,
    device: o.Device = "cpu",
    threads: o.Threads = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Train a drafter for a model, and measure on text it has not seen how often it is right."""
    if method not in METHODS:
        raise UsageError(f"--method: {method!r} is not known; choose from {', '.join(METHODS)}")
    if joint and method != "medusa":
        raise UsageError(f"--joint: only --method medusa tunes the model with its heads, not {method}")
    sources = data or ["self"]
    _check_sources(sources)
    if not resume and (out / "config.json").exists():
        raise UsageError(f"--out: {out} holds a model already; give another folder, or --resume to go on with it")
    from engine.train.session import Recipe

    recipe = Recipe(
        method=method,
        target=target,
        data=sources,
        out=out,
        minutes=minutes,
        start=_start(start, target, method),
        resume=resume,
        length=length,
        batch_tokens=batch_tokens,
        draft_vocab=draft_vocab,
        rate=rate,
        seed=seed,
        joint=joint,
    )
    outcome = _run(recipe, device, threads)
    _show(outcome, method, json=json)


def _check_sources(sources: list[str]) -> None:
    for name in sources:
        if name != "self" and not Path(name).exists():
            raise UsageError(f"--data: {name} does not exist; give a folder of text files, an .npz file or `self`")


def _start(name: str, target: str, method: str) -> Path | None:
    """The folder to begin with, if any."""
    if name == FRESH:
        return None
    if name == SHIPPED:
        from engine.drafters.shipped import shipped_drafter

        return shipped_drafter(target, method)
    if not (Path(name) / "config.json").is_file():
        raise UsageError(f"--from: {name} has no config.json; give the folder of a trained drafter, or `none`")
    return Path(name)


def _run(recipe: Recipe, device: str, threads: int | None) -> Outcome:
    import torch

    from adaptive.benchmark.prompts import built_in_prompts
    from engine.models.source import open_model
    from engine.train.asks.ask import Guard
    from engine.train.session import train as train_drafter
    from engine.train.teacher import teaching_dtype

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device: {device} is not there: torch finds no CUDA device; use cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    guard = Guard(str(item.prompt) for item in built_in_prompts())
    with usage("--target"):
        source = open_model(recipe.target)
    with _Watcher(recipe.method) as watcher:
        watcher.stage(f"loading {recipe.target}")
        checkpoint = source.load(torch.float32)
        return train_drafter(recipe, checkpoint, guard, watcher.listener(), device, teaching_dtype(device))


class _Watcher:
    """Shows on stderr what happens: a bar on a terminal, lines in any case."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._console = stderr()
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not live)
        self._task = self._progress.add_task("", total=1.0)

    def __enter__(self) -> _Watcher:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def listener(self) -> Listener:
        from engine.train.session import Listener

        return Listener(self.stage, self.look, self.spent)

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        self._console.print(text, markup=False)

    def look(self, look: Look) -> None:
        seen = look.held_out[self._method]["all"]
        rates = " ".join(_rate(rate) for rate in seen.alpha)
        value = look.loss[self._method]
        loss = "" if value != value else f"loss {value:.3f}, "  # nan before the first step
        self._console.print(
            f"step {look.step}, {look.elapsed_s:.0f} s: {loss}held-out acceptance {rates}, τ {seen.tau:.2f}",
            markup=False,
        )

    def spent(self, share: float) -> None:
        self._progress.update(self._task, completed=share)


def _rate(value: float) -> str:
    return MISSING if value != value else f"{value:.2f}"


def _show(outcome: Outcome, method: str, *, json: bool) -> None:
    if json:
        print_json(
            {
                "method": method,
                "folder": str(outcome.folder),
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "before": _rounded(outcome.before),
                "after": _rounded(outcome.after),
            }
        )
        return
    depth = len(outcome.after["all"].alpha)
    rows = [
        [task, when, *(_rate(rate) for rate in one.alpha), f"{one.tau:.2f}"]
        for task in outcome.after
        for when, one in (("before", outcome.before[task]), ("after", outcome.after[task]))
    ]
    columns = ["text", "training", *(f"α{step + 1}" for step in range(depth)), "τ"]
    console = stdout()
    console.print(table(f"{method}: held-out acceptance at temperature 0", columns, rows, left=2))
    console.print(f"{outcome.steps} steps; the drafter and its card are in {outcome.folder}", markup=False)


def _rounded(found: Mapping[str, Acceptance]) -> dict[str, dict[str, object]]:
    return {task: one.rounded() for task, one in found.items()}
