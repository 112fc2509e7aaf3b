"""A benchmark from its settings to what it found: engines loaded once, then each batch size by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from adaptive.cli.configured import Configured
from adaptive.cli.lineup import Lineup
from adaptive.cli.matrix import matrix
from adaptive.cli.memory import EngineMemory
from adaptive.cli.peers import PeerOptions, peer_arms
from adaptive.cli.prompt_ids import token_ids
from adaptive.cli.render import Steps
from adaptive.cli.report import print_foreign_cpu, print_lossless, print_lossy, print_outcome, print_slos
from adaptive.cli.session import TextEngine, load_settled, prompts_that_fit, settle_engines
from adaptive.contract import Policy
from adaptive.requests import Sampling

if TYPE_CHECKING:
    from adaptive.benchmark import Outcome, PromptItem

BASELINE = "fixed:0"


@dataclass(frozen=True, slots=True)
class Found:
    """An outcome for each batch size, the engine's own description, and what each engine was to take."""

    outcomes: Sequence[Outcome]
    engine: Mapping[str, object]
    memory: Sequence[EngineMemory]

    def as_json(self, settings: Mapping[str, object]) -> dict[str, object]:
        from adaptive.benchmark import outcomes_json

        return outcomes_json(self.outcomes, self.engine, settings) | {"memory": [one.as_json() for one in self.memory]}


@dataclass(frozen=True, slots=True)
class Contest:
    """What is measured: policies on drafters, beside others, on which prompts, how, and how often."""

    who: Lineup
    policies: Mapping[str, Policy]
    others: PeerOptions
    items: Sequence[PromptItem]
    sampling: Sampling
    repeat: int
    setup: Configured

    def run(self) -> Found:
        """UsageError before anything is loaded where a policy can not work with a drafter."""
        settled = settle_engines(self.who.options, self.who.batches)
        placed = self.who.place(self.policies, settled, allow_lossy=self.setup.allow_lossy)
        engines = load_settled(settled, self.who.options)
        with prompts_that_fit():
            outcomes = [self._outcome(engines, placed, batch) for batch in self.who.batches]
        return Found(outcomes, engines[0].describe(), settled.memory)

    def _outcome(self, engines: Sequence[TextEngine], placed: Mapping[int, Sequence[str]], batch: int) -> Outcome:
        """All arms, interleaved, with `batch` requests side by side."""
        from adaptive.benchmark import conclude, make_gap, measure, units

        plain, wanted = engines[0], self.who.options[0]
        title = f"bench, batch {batch}" if len(self.who.batches) > 1 else "bench"
        with peer_arms(plain, self.others, wanted, batch, ignore_eos=self.sampling.ignore_eos) as theirs:
            arms = [*self.who.arms(engines, self.policies, placed, batch, self.setup), *theirs]
            with Steps(title, units(arms, self.items, self.repeat)) as steps:
                results = measure(arms, self.items, self.sampling, self.repeat, steps.begin)
        ids = {item.id: token_ids(plain.tokenizer, item.prompt) for item in self.items}
        gap = make_gap(plain, self.policies[BASELINE], ids)
        comparable = self.sampling.greedy and all(one.synthetic is None for one in self.who.options)
        return conclude(arms, results, peers=self.others.labels, comparable=comparable, gap=gap, batch=batch)


def print_found(console: Console, found: Found, who: Lineup, notice: str | None) -> None:
    """Tables, the lossless check and how busy the machine was; `notice` says why the text means nothing."""
    from adaptive.benchmark import others_of

    if notice is not None:
        console.print(notice, markup=False)
    if who.several or len(who.batches) > 1:
        for part in matrix(found.outcomes):
            console.print(part)
        print_slos(console, found.outcomes)
    else:
        print_outcome(console, found.outcomes[0])
    print_lossy(console, found.outcomes)
    for outcome in found.outcomes:
        print_lossless(console, outcome, len(who.batches) > 1, notice)
    print_foreign_cpu(console, others_of(found.outcomes))
