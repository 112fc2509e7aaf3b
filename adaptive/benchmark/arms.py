"""The competitors of a benchmark: a policy on the bundled engine, or another library on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adaptive.benchmark.client import ask
from adaptive.benchmark.machine import CpuMeter
from adaptive.benchmark.probe import ProbedEngine, StepTrace
from adaptive.benchmark.prompts import PromptItem
from adaptive.contract import Engine, Policy
from adaptive.controller import AdaptiveController
from adaptive.requests import RequestStats, Sampling
from adaptive.slo import NO_LIMITS, Attainment, Slo


@dataclass(frozen=True, slots=True)
class Run:
    """One arm's answers to one group of prompts. `seconds` is wall time from the first submission to the last token.

    `tokens` maps prompt ids to token ids; `foreign_cpu` is the share of the machine others used. What only our own
    engine can tell (`stats`, `itl_ms`, `steps`, `controller_s`, `slo`) is empty for a peer.
    """

    seconds: float
    foreign_cpu: float
    tokens: Mapping[str, tuple[int, ...]]
    stats: tuple[RequestStats, ...] = ()
    itl_ms: tuple[float, ...] = ()
    steps: tuple[StepTrace, ...] = ()
    controller_s: float = 0.0
    slo: Mapping[str, Attainment] = field(default_factory=dict)


class Arm(Protocol):
    """`label` tells it from all others of the benchmark; `shown` is what it is called beside its drafter."""

    @property
    def label(self) -> str: ...

    @property
    def shown(self) -> str: ...

    @property
    def drafter(self) -> str | None: ...

    def run(self, items: Sequence[PromptItem], sampling: Sampling) -> Run: ...


@dataclass(frozen=True)
class PolicyArm:
    """A policy on an engine, kept as full as it goes: an answer that ends is followed by the next prompt.

    Every run starts with a fresh clone of the policy: nothing learned is carried over. `width` is how many requests are
    in flight, as many as the engine holds unless given. Where the same policy is there with several drafters, the label
    names the drafter too (`names_drafter`).
    """

    shown: str
    policy: Policy
    engine: Engine
    drafter: str | None = None
    slo: Slo = NO_LIMITS
    allow_lossy: bool = False
    width: int | None = None
    names_drafter: bool = False

    @property
    def label(self) -> str:
        return f"{self.drafter} {self.shown}" if self.names_drafter else self.shown

    def run(self, items: Sequence[PromptItem], sampling: Sampling) -> Run:
        probed = ProbedEngine(self.engine)
        controller = AdaptiveController(probed, policy=self.policy.clone(), slo=self.slo, allow_lossy=self.allow_lossy)
        width = self.width or probed.capabilities().batch_buckets[-1]
        with CpuMeter() as meter:
            answers = ask(controller, items, sampling, concurrency=width, allow_lossy=self.allow_lossy)
        return Run(
            seconds=meter.seconds,
            foreign_cpu=meter.foreign,
            tokens={answer.item.id: tuple(answer.tokens) for answer in answers},
            stats=tuple(answer.stats for answer in answers if answer.stats is not None),
            itl_ms=tuple(gap for answer in answers for gap in answer.itl_ms),
            steps=tuple(probed.probe.steps),
            controller_s=probed.probe.seconds,
            slo=controller.stats().slo,
        )


@dataclass(frozen=True)
class PeerArm:
    """Another library's greedy decoding in this process, `batch` prompts side by side, then the next ones.

    `generate(items, max_tokens)` gives the token ids of each answer.
    """

    label: str
    generate: Callable[[Sequence[PromptItem], int], Sequence[Sequence[int]]] = field(repr=False)
    batch: int = 1
    drafter: str | None = None

    @property
    def shown(self) -> str:
        return self.label

    def run(self, items: Sequence[PromptItem], sampling: Sampling) -> Run:
        tokens: dict[str, tuple[int, ...]] = {}
        with CpuMeter() as meter:
            for group in in_batches(items, self.batch):
                answers = self.generate(group, sampling.max_tokens)
                tokens |= {item.id: tuple(ids) for item, ids in zip(group, answers, strict=True)}
        return Run(seconds=meter.seconds, foreign_cpu=meter.foreign, tokens=tokens)


def in_batches(items: Sequence[PromptItem], batch: int) -> Iterator[Sequence[PromptItem]]:
    """Up to `batch` at a time, in order."""
    for start in range(0, len(items), batch):
        yield items[start : start + batch]
