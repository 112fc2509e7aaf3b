"""Train the drafters that ship with the package, all side by side, within a budget of time.

    python bench/train_drafters.py --out FOLDER [--device cuda] [--write-s 75] [--train-s 380]

The target writes the text (greedy and sampled answers to its own questions, to questions about code and to edit tasks),
then every drafter learns from the same lessons: the target reads each batch once. Held-out acceptance is printed as it
goes; per method one `.tar` with the drafter's folder is left in FOLDER, with figures, plot and the text itself.
The package's own prompts are never learnt from: they measure. `--model random` tries the machine out in seconds, on a
few layers of random weights in SmolLM2's sizes.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated, Any

import torch
import typer

from adaptive.benchmark.prompts import built_in_prompts
from adaptive.lists import words
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.source import open_model
from engine.train.asks.ask import Ask, Guard
from engine.train.asks.snippets import standard_library
from engine.train.build import METHODS, RATE_SHARES, Sizes, build_drafter
from engine.train.card import CardFacts, write_card
from engine.train.corpus import Corpus, Document, clip
from engine.train.draft_vocab import coverage, frequent_tokens
from engine.train.drafter import TrainableDrafter
from engine.train.evaluate import Acceptance, by_task, evaluate
from engine.train.files import save_drafter
from engine.train.loop import Look, Plan, Training
from engine.train.plot import plot_history
from engine.train.school import School
from engine.train.self_written import SelfWritten
from engine.train.teacher import Teacher, teaching_dtype
from engine.train.writer import Writer
from tests.engine.tiny import random_weights
from tests.engine.train.tiny_school import CONFIG, tiny_tokenizer

RANDOM = "random"
LICENCE = "Apache-2.0"
TASK_NAMES = {"free": "chat", "code-edit": "code edit", "text-edit": "text edit"}
LAST_S = 20.0  # for the last measurement and the files
SPARE_BYTES = 60 << 30  # of GPU memory, for what the teacher thought of batches
MEASURED_AT_THE_END = 1000  # held-out documents
NOTE = "Trained beside the other drafters of this target on the same text, which the target wrote."


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    out: Path
    model: str
    device: str
    methods: tuple[str, ...]
    text: tuple[Path, ...]
    write_s: float
    train_s: float
    rows: int
    answer_tokens: int
    batch_tokens: int
    draft_vocab: int
    rate: float
    look_s: float
    keep_tokens: int
    modules: int
    prompts: int
    looked_at: int
    seed: int

    @property
    def length(self) -> int:
        return self.answer_tokens + 448


def open_target(name: str) -> Checkpoint:
    """The model in float32, or a few random layers as wide as SmolLM2's."""
    if name != RANDOM:
        return open_model(name).load(torch.float32)
    config = replace(
        CONFIG, hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64, context_len=1024
    )
    weights = {
        key: 0.05 * one if one.ndim > 1 else one for key, one in random_weights(config, 1, torch.float32).items()
    }
    return Checkpoint(config, weights, tiny_tokenizer(), name)


class Clock:
    """Says what happens and when."""

    def __init__(self) -> None:
        self.started = monotonic()

    def say(self, text: str) -> None:
        print(f"[{monotonic() - self.started:6.1f} s] {text}", flush=True)


def write_text(settings: Settings, teacher: Teacher, clock: Clock) -> tuple[Corpus, list[Document]]:
    """The corpus, and the target's greedy answers to the package's own prompts."""
    snippets = standard_library(settings.seed, settings.modules)
    clock.say(f"{len(snippets.functions)} functions, {len(snippets.paragraphs)} paragraphs of the standard library")
    prompts = built_in_prompts()
    guard = Guard(str(item.prompt) for item in prompts)
    writer = Writer(teacher, settings.rows, settings.seed)
    source = SelfWritten(teacher, writer, snippets, guard, settings.seed, settings.answer_tokens)
    asks = [Ask(TASK_NAMES.get(item.task, item.task), str(item.prompt), item.id) for item in prompts]
    asks = asks[: settings.prompts]
    measured = [document for _, document in source.answer(asks, [0.0] * len(asks))]
    corpus, begun, longest = Corpus(), monotonic(), 0.0
    for path in settings.text:
        corpus.extend(clip(list(Corpus.load(path)), settings.length))
    while monotonic() - begun + longest < settings.write_s:
        round_begun = monotonic()
        try:
            documents = source.round(2 * writer.rows)
        except torch.OutOfMemoryError:
            writer.rows //= 2
            clock.say(f"out of GPU memory: {writer.rows} rows from here on")
            torch.cuda.empty_cache()
            continue
        corpus.extend(documents)
        took = monotonic() - round_begun
        longest = max(longest, took)
        answered = sum(len(one) - one.answer_start for one in documents)
        clock.say(f"{len(documents)} documents, {answered} answer tokens, {answered / took:.0f} tokens/s")
    return corpus, measured


def make_drafters(settings: Settings, teacher: Teacher, config: ModelConfig, weights: Any) -> list[TrainableDrafter]:
    """Fresh ones, from one seed."""
    torch.manual_seed(settings.seed)
    return [build_drafter(method, config, weights, settings.length, Sizes()) for method in settings.methods]


class Shelf:
    """Prints what is seen and keeps the files: from half of the time on after every look, in case of a sudden end."""

    def __init__(self, settings: Settings, school: School, corpus: Corpus, clock: Clock) -> None:
        self.settings, self.school, self.clock = settings, school, clock
        self.summary = corpus.summary()
        self.covered = coverage(school.vocab, corpus.answer_tokens(held_out=True))
        self.training: Training | None = None

    def __call__(self, look: Look) -> None:
        speed = look.tokens / max(look.elapsed_s, 1e-9)
        self.clock.say(f"step {look.step}, {look.tokens / 1e6:.1f} M tokens, {speed / 1e3:.0f} k tokens/s")
        for method, tasks in look.held_out.items():
            parts = [f"{task} {_rates(one)} τ {one.tau:.2f}" for task, one in tasks.items()]
            self.clock.say(f"  {method:7} loss {look.loss[method]:.3f}  " + "  ".join(parts))
        if self.training is not None and look.elapsed_s > self.settings.train_s / 2:
            for pupil in self.training.pupils:
                self.put(pupil.drafter, {"held out": look.held_out[pupil.drafter.method]}, self.training)

    def put(
        self, drafter: TrainableDrafter, acceptance: Mapping[str, Mapping[str, Acceptance]], training: Training
    ) -> None:
        """The drafter's folder as a `.tar`; one that was there before is replaced."""
        name = f"{self.settings.model}-{drafter.method}"
        with TemporaryDirectory() as place:
            folder = Path(place)
            size = save_drafter(folder, drafter, self.school.teacher.config, self.school.vocab, self.settings.model)
            plot = plot_history(folder / "training.png", training.history, drafter.method)
            facts = CardFacts(
                method=drafter.method,
                target=self.settings.model,
                licence=LICENCE,
                parameters=sum(one.numel() for one in drafter.parameters()),
                megabytes=size / 1e6,
                draft_vocab=self.school.vocab.size,
                coverage=self.covered,
                steps=training.step,
                tokens_seen=training.tokens,
                seconds=training.history[-1].elapsed_s,
                machine=_machine(self.school.device),
                text=self.summary,
                acceptance=acceptance,
                notes=(NOTE,),
            )
            write_card(folder, facts, plot.name if plot else None)
            with tarfile.open(self.settings.out / f"{drafter.method}.tar", "w") as tar:
                tar.add(folder, arcname=name)


def _rates(one: Acceptance) -> str:
    return "/".join(f"{rate:.2f}".removeprefix("0") for rate in one.alpha)


def finish(shelf: Shelf, training: Training, corpus: Corpus, measured: list[Document]) -> None:
    """Measure once more, on more text, and leave all files."""
    settings, drafters = shelf.settings, [pupil.drafter for pupil in training.pupils]
    held = [one for one in corpus.part(held_out=True) if one.greedy][:MEASURED_AT_THE_END]
    figures: dict[str, Any] = {"text": shelf.summary, "history": [look.as_json() for look in training.history]}
    found: dict[str, dict[str, dict[str, Acceptance]]] = {drafter.method: {} for drafter in drafters}
    for name, some in (("held out", held), ("built-in prompts", measured)):
        batches = by_task(some, settings.batch_tokens, shelf.school.device)
        rows = evaluate(shelf.school, drafters, batches, training.plan.depth)
        for drafter, tasks in zip(drafters, rows, strict=True):
            found[drafter.method][name] = tasks
            for task, one in tasks.items():
                rates = f"{_rates(one)} τ {one.tau:.3f} ({one.chains} chains)"
                shelf.clock.say(f"{drafter.method:7} {name:16} {task:10} {rates}")
    for drafter in drafters:
        shelf.put(drafter, found[drafter.method], training)
        figures[drafter.method] = {
            name: {task: one.rounded() for task, one in tasks.items()} for name, tasks in found[drafter.method].items()
        }
    (settings.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    corpus.save(settings.out / "text.npz", settings.keep_tokens)


def _machine(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"


def run(settings: Settings) -> None:
    """Load, write, train, keep."""
    clock = Clock()
    settings.out.mkdir(parents=True, exist_ok=True)
    # cuDNN's attention plans every new shape anew, and writing and training meet many.
    torch.backends.cuda.enable_cudnn_sdp(False)
    checkpoint = open_target(settings.model)
    teacher = Teacher.load(checkpoint, settings.length, settings.device, teaching_dtype(settings.device))
    clock.say(f"loaded {settings.model} on {settings.device}, torch {torch.__version__}")
    corpus, measured = write_text(settings, teacher, clock)
    clock.say(f"{corpus.summary()}")
    if settings.device.startswith("cuda"):
        clock.say(f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory so far")
        torch.cuda.empty_cache()
    vocab = frequent_tokens(corpus.answer_tokens(), teacher.tokenizer, teacher.config.vocab_size, settings.draft_vocab)
    school = School(teacher, vocab, spare_bytes=SPARE_BYTES if settings.device.startswith("cuda") else 0)
    covered = coverage(vocab, corpus.answer_tokens(held_out=True))
    clock.say(f"draft vocabulary {vocab.size}, covers {covered:.4f} of held-out text")
    drafters = make_drafters(settings, teacher, checkpoint.config, checkpoint.weights)
    plan = Plan(settings.train_s - LAST_S, settings.batch_tokens, settings.rate, settings.look_s, seed=settings.seed)
    held = [one for one in corpus.part(held_out=True) if one.greedy][: settings.looked_at]
    shelf = Shelf(settings, school, corpus, clock)
    training = Training(school, drafters, plan, corpus.part(held_out=False), held, shelf, RATE_SHARES)
    shelf.training = training
    training.run()
    finish(shelf, training, corpus, measured)
    clock.say("done")


def main(
    out: Annotated[Path, typer.Option(help="folder for the results")],
    model: Annotated[str, typer.Option(help="the target")] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    methods: Annotated[str, typer.Option(help="comma-separated")] = "eagle3,medusa,mtp,draft",
    text: Annotated[list[Path] | None, typer.Option(help="text of an earlier run to learn from as well")] = None,
    write_s: Annotated[float, typer.Option(help="seconds for writing text")] = 75,
    train_s: Annotated[float, typer.Option(help="seconds for training and files")] = 380,
    rows: Annotated[int, typer.Option(help="rows written at a time")] = 3072,
    answer_tokens: Annotated[int, typer.Option(help="longest answer")] = 256,
    batch_tokens: Annotated[int, typer.Option(help="tokens a training step")] = 16384,
    draft_vocab: Annotated[int, typer.Option(help="tokens a drafter can say")] = 9216,
    rate: Annotated[float, typer.Option(help="largest step size")] = 1e-3,
    look_s: Annotated[float, typer.Option(help="seconds between measurements")] = 30,
    keep_tokens: Annotated[int, typer.Option(help="tokens of text to keep in the results")] = 6_000_000,
    modules: Annotated[int, typer.Option(help="modules of the standard library to read")] = 260,
    prompts: Annotated[int, typer.Option(help="of the package's own prompts, how many to measure on")] = 24,
    looked_at: Annotated[int, typer.Option(help="held-out documents measured as it goes")] = 256,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train all drafters of one target."""
    chosen = tuple(words([methods]))
    unknown = sorted(set(chosen) - set(METHODS))
    if not chosen or unknown:
        raise typer.BadParameter(f"--methods: {methods!r} is not a list of {', '.join(METHODS)}")
    run(
        Settings(
            out=out,
            model=model,
            device=device,
            methods=chosen,
            text=tuple(text or ()),
            write_s=write_s,
            train_s=train_s,
            rows=rows,
            answer_tokens=answer_tokens,
            batch_tokens=batch_tokens,
            draft_vocab=draft_vocab,
            rate=rate,
            look_s=look_s,
            keep_tokens=keep_tokens,
            modules=modules,
            prompts=prompts,
            looked_at=looked_at,
            seed=seed,
        )
    )


if __name__ == "__main__":
    typer.run(main)
