"""From what a user asks for to a trained drafter in a folder: the work behind `adaptive train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from engine.models.checkpoint import Checkpoint
from engine.train.asks.ask import Guard
from engine.train.asks.snippets import standard_library
from engine.train.backbone_files import save_backbone
from engine.train.build import RATE_SHARES, Sizes, build_drafter
from engine.train.card import CardFacts, write_card
from engine.train.corpus import Corpus, clip
from engine.train.draft_vocab import DraftVocab, coverage, frequent_tokens
from engine.train.drafter import TrainableDrafter
from engine.train.evaluate import Acceptance, by_task, evaluate
from engine.train.files import load_drafter, read_settings, save_drafter
from engine.train.loop import Look, Plan, Training
from engine.train.medusa2 import Medusa2
from engine.train.plot import plot_history
from engine.train.school import School
from engine.train.self_written import SelfWritten
from engine.train.teacher import Teacher
from engine.train.texts import ANSWER_TOKENS, continued, cut, read_texts
from engine.train.writer import Writer

SELF = "self"
JOINT_NOTE = (
    "Heads and model were tuned together (Medusa-2): use them with the model in `backbone/`. Acceptance is measured on "
    "what the untuned model wrote."
)
TEXT = "text.npz"
BACKBONE = "backbone"
WRITING_SHARE = 0.45  # of the time, where the target writes its own text
PROMPT_TOKENS = 448
FEWEST_PIECES, SHORTEST_PIECE = 40, 32
LONGEST_LOOK_S = 60.0
SPARE_BYTES = 1 << 30  # features of about 100,000 tokens of a small model


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to train, from what, for how long. `data` holds `self`, folders, text files and `.npz` files.

    `start` is the folder of a drafter to begin with, `writing_rows` the answers that the target writes at a time,
    `licence` what the card says of the result. `joint` tunes the target with Medusa's heads and writes it beside them.
    """

    method: str
    target: str
    data: Sequence[str]
    out: Path
    minutes: float
    start: Path | None = None
    resume: bool = False
    length: int = 256
    answer_tokens: int = 128
    batch_tokens: int = 2048
    writing_rows: int = 48
    draft_vocab: int = 8192
    rate: float = 1e-3
    seed: int = 0
    licence: str = "Apache-2.0"
    modules: int = 260
    joint: bool = False

    def context(self, limit: int) -> int:
        """The longest sequence anything here reads. ValueError where the model's `limit` is below it."""
        own = SELF in self.data or any(name.endswith(".npz") for name in self.data)
        shortest = max(self.length + ANSWER_TOKENS, 2 * self.answer_tokens if own else 0)
        if shortest > limit:
            raise ValueError(
                f"sequences of {shortest} tokens are above the model's context of {limit}: give a smaller --length"
            )
        return min(limit, max(shortest, PROMPT_TOKENS + self.answer_tokens if own else 0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out: acceptance before the first step of this run and at its end, by task."""

    folder: Path
    steps: int
    seconds: float
    before: dict[str, Acceptance]
    after: dict[str, Acceptance]


@dataclass(frozen=True, slots=True)
class Listener:
    """Told what happens: a sentence when a stage begins, every look, and the share of the time that is spent."""

    stage: Callable[[str], None]
    look: Callable[[Look], None]
    spent: Callable[[float], None]


def train(
    recipe: Recipe,
    checkpoint: Checkpoint,
    guard: Guard,
    listener: Listener,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> Outcome:
    """Gather the text, train, write the folder. ValueError for what the recipe asks and the target can not do.

    `guard` knows prompts that must not be learnt from. The target teaches in `dtype`; what drafters take over of it
    keeps the checkpoint's.
    """
    begun = monotonic()
    teacher = Teacher.load(checkpoint, recipe.context(checkpoint.config.context_len), device, dtype)
    corpus = gather(recipe, teacher, guard, listener)
    drafter, vocab = make(recipe, checkpoint, corpus, teacher)
    school = School(teacher, vocab, spare_bytes=SPARE_BYTES)
    seconds = 60 * recipe.minutes - (0 if recipe.resume else monotonic() - begun)
    plan = Plan(
        seconds=max(seconds, 1.0),
        batch_tokens=recipe.batch_tokens,
        rate=recipe.rate,
        look_s=min(LONGEST_LOOK_S, 6 * recipe.minutes),
        seed=recipe.seed,
    )
    held_out = [one for one in corpus.part(held_out=True) if one.greedy]
    training = Training(
        school, [drafter], plan, corpus.part(held_out=False), held_out, listener.look, RATE_SHARES, listener.spent
    )
    if recipe.resume:
        training.resume(recipe.out)
    listener.stage("training")
    training.run(recipe.out)
    (after,) = evaluate(school, [drafter], by_task(held_out, recipe.batch_tokens, school.device), plan.depth)
    _keep(recipe, training, drafter, school, corpus, after)
    if isinstance(drafter, Medusa2):
        listener.stage(f"writing the tuned model to {recipe.out / BACKBONE}")
        save_backbone(recipe.out / BACKBONE, drafter.backbone, checkpoint)
    before = dict(training.history[0].held_out[recipe.method])
    return Outcome(recipe.out, training.step, training.history[-1].elapsed_s, before, after)


def gather(recipe: Recipe, teacher: Teacher, guard: Guard, listener: Listener) -> Corpus:
    """The text of all sources; what the target wrote is kept beside the drafter, and taken up again when resuming."""
    kept = recipe.out / TEXT
    if recipe.resume and kept.is_file():
        return Corpus.load(kept)
    corpus = Corpus()
    writer = Writer(teacher, recipe.writing_rows, recipe.seed)
    for name in recipe.data:
        if name == SELF:
            listener.stage("the target writes text")
            _write(corpus, recipe, teacher, writer, guard, listener)
        elif name.endswith(".npz"):
            corpus.extend(clip(list(Corpus.load(Path(name))), teacher.context_len))
        else:
            listener.stage(f"reading {name}")
            texts = teacher.tokenizer.encode_many(read_texts(Path(name)))
            total = sum(len(text) for text in texts)
            length = max(SHORTEST_PIECE, min(recipe.length, total // FEWEST_PIECES))
            learnt, pieces = cut(texts, length)
            corpus.extend(learnt)
            corpus.extend(continued(pieces, writer))
    corpus.save(kept)
    return corpus


def _write(corpus: Corpus, recipe: Recipe, teacher: Teacher, writer: Writer, guard: Guard, listener: Listener) -> None:
    """Rounds of answers until their share of the time is over; at least until some are held out."""
    snippets = standard_library(recipe.seed, recipe.modules)
    prompt_tokens = teacher.context_len - recipe.answer_tokens
    source = SelfWritten(teacher, writer, snippets, guard, recipe.seed, recipe.answer_tokens, prompt_tokens)
    begun, seconds = monotonic(), WRITING_SHARE * 60 * recipe.minutes
    while monotonic() - begun < seconds or not all(corpus.part(held_out=kind) for kind in (False, True)):
        documents = source.round(recipe.writing_rows)
        if not documents:
            raise ValueError(f"no question of ours fits into {prompt_tokens} tokens: give text of your own with --data")
        corpus.extend(documents)
        listener.spent((monotonic() - begun) / (60 * recipe.minutes))


def make(
    recipe: Recipe, checkpoint: Checkpoint, corpus: Corpus, teacher: Teacher
) -> tuple[TrainableDrafter, DraftVocab]:
    """The drafter to begin with, and what it can say. ValueError where `start` is of another kind or size."""
    torch.manual_seed(recipe.seed)
    own = recipe.resume and (recipe.out / "config.json").is_file()
    folder = recipe.out if own else recipe.start
    if folder is None or not (folder / "config.json").is_file():
        sizes = Sizes(joint=recipe.joint)
        drafter = build_drafter(recipe.method, checkpoint.config, checkpoint.weights, teacher.context_len, sizes)
        tokens = corpus.answer_tokens()
        return drafter, frequent_tokens(tokens, teacher.tokenizer, checkpoint.config.vocab_size, recipe.draft_vocab)
    sizes = _sizes(folder, recipe.joint)
    drafter = build_drafter(recipe.method, checkpoint.config, checkpoint.weights, teacher.context_len, sizes)
    vocab = load_drafter(folder, drafter)
    if len(vocab.index_V) != checkpoint.config.vocab_size:
        raise ValueError(
            f"{folder} was trained for a vocabulary of {len(vocab.index_V)}, not {checkpoint.config.vocab_size}"
        )
    return drafter, vocab


def _sizes(folder: Path, joint: bool) -> Sizes:
    """Of a drafter that is there already."""
    settings, usual = read_settings(folder), Sizes()
    return Sizes(
        medusa_heads=settings.get("medusa_num_heads", usual.medusa_heads),
        medusa_layers=settings.get("medusa_num_layers", usual.medusa_layers),
        draft_layers=settings.get("num_hidden_layers", usual.draft_layers),
        joint=joint,
    )


def _keep(
    recipe: Recipe,
    training: Training,
    drafter: TrainableDrafter,
    school: School,
    corpus: Corpus,
    after: dict[str, Acceptance],
) -> None:
    config = school.teacher.config
    size = save_drafter(recipe.out, drafter, config, school.vocab, recipe.target)
    plot = plot_history(recipe.out / "training.png", training.history, drafter.method)
    facts = CardFacts(
        method=drafter.method,
        target=recipe.target,
        licence=recipe.licence,
        parameters=sum(one.numel() for one in drafter.parameters()),
        megabytes=size / 1e6,
        draft_vocab=school.vocab.size,
        coverage=coverage(school.vocab, corpus.answer_tokens(held_out=True)),
        steps=training.step,
        tokens_seen=training.tokens,
        seconds=training.history[-1].elapsed_s,
        machine="a GPU" if school.device.type == "cuda" else "a CPU",
        text=corpus.summary(),
        acceptance={"held out": after},
        notes=(JOINT_NOTE,) if recipe.joint else (),
    )
    write_card(recipe.out, facts, plot.name if plot else None)
