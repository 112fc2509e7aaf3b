"""The model card of a trained drafter: what it is, what it learnt from, how often it is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.train.evaluate import Acceptance

EXPLAINED = (
    "At temperature 0, on the target's own greedy answers: α is the share of draft tokens at a position that are right "
    "where all before them were, τ is tokens per step of the target.\n"
)
TITLES = {
    "eagle1": "EAGLE-1 drafter",
    "eagle3": "EAGLE-3 drafter",
    "medusa": "Medusa heads",
    "mtp": "Multi-token prediction module",
    "draft": "Small draft model",
}


@dataclass(frozen=True, slots=True)
class CardFacts:
    """`acceptance` by set of texts and task; `text` by task of what was learnt from (as `Corpus.summary` says it)."""

    method: str
    target: str
    licence: str
    parameters: int
    megabytes: float
    draft_vocab: int
    coverage: float
    steps: int
    tokens_seen: int
    seconds: float
    machine: str
    text: Mapping[str, Mapping[str, int]]
    acceptance: Mapping[str, Mapping[str, Acceptance]]
    notes: tuple[str, ...] = field(default=())


def write_card(folder: Path, facts: CardFacts, plot: str | None = None) -> None:
    """README.md, in the form that model hubs read."""
    parts = [_head(facts), _about(facts), _learnt_from(facts), _acceptance(facts)]
    if plot:
        parts.append(f"![Loss and held-out acceptance over the training]({plot})\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _head(facts: CardFacts) -> str:
    return f"---\nlicense: {facts.licence.lower()}\nbase_model: {facts.target}\ntags: [speculative-decoding]\n---\n"


def _about(facts: CardFacts) -> str:
    return (
        f"# {TITLES[facts.method]} for {facts.target}\n\n"
        f"Licence: {facts.licence}. {facts.parameters:,} own parameters ({facts.megabytes:.1f} MB in float16); "
        f"embedding and output head are the target's. It can say {facts.draft_vocab:,} of its tokens, which are "
        f"{100 * facts.coverage:.1f} % of the held-out text.\n\n"
        f"Trained for {facts.steps:,} steps on {facts.tokens_seen:,} tokens (repeats counted) in {facts.seconds:.0f} s "
        f"on {facts.machine}.\n" + "".join(f"\n{note}\n" for note in facts.notes)
    )


def _learnt_from(facts: CardFacts) -> str:
    rows = [
        f"| {task} | {row['documents']:,} | {row['answer_tokens']:,} | {row['held_out']:,} |"
        for task, row in sorted(facts.text.items())
    ]
    return "\n".join(
        [
            "## Training text\n",
            "| task | documents | answer tokens learnt from | documents held out |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _acceptance(facts: CardFacts) -> str:
    depth = max(len(one.alpha) for tasks in facts.acceptance.values() for one in tasks.values())
    lines = [
        "## Acceptance\n",
        EXPLAINED,
        "| text | task | " + " | ".join(f"α{k + 1}" for k in range(depth)) + " | τ |",
        "|---|---|" + "---|" * (depth + 1),
    ]
    for text, tasks in facts.acceptance.items():
        for task, one in tasks.items():
            rates = [_rate(one.alpha[k]) if k < len(one.alpha) else "–" for k in range(depth)]
            lines.append(f"| {text} | {task} | " + " | ".join(rates) + f" | {one.tau:.2f} |")
    return "\n".join([*lines, ""])


def _rate(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
