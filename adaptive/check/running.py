"""One controller on one engine, and what came out: what the checks of `check_engine` are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from adaptive.check.recorder import Course, Lever, Recorder
from adaptive.check.suite import expect
from adaptive.contract import Capabilities, Engine
from adaptive.requests import Output, Prompt, Request, RequestId, Sampling

MAX_STEPS = 10_000


@runtime_checkable
class AnyEngine(Engine, Protocol):
    """`Engine`, told apart from a factory at run time."""


@dataclass(frozen=True)
class Bench:
    source: Engine | Callable[[], Engine]
    prompts: tuple[Prompt, ...]
    sampling: Sampling

    def engine(self) -> Engine:
        if isinstance(self.source, type) or not isinstance(self.source, AnyEngine):
            return self.source()
        return self.source

    def requests(self, engine: Engine) -> list[Request]:
        """More than fit at once, up to a point, and of unequal length."""
        count = min(engine.capabilities().batch_buckets[-1], 6) + 2
        lengths = [max(1, self.sampling.max_tokens - 3 * (place % 3)) for place in range(count)]
        return [
            Request(self.prompts[place % len(self.prompts)], replace(self.sampling, max_tokens=length))
            for place, length in enumerate(lengths)
        ]


@dataclass
class Run:
    """One controller on one engine, and what came out."""

    engine: Engine
    course: Course
    lever: Lever | None = None
    outputs: dict[RequestId, list[Output]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.course, self.lever)
        self.engine.attach(self.recorder)

    def submit(self, request: Request) -> RequestId:
        name = self.engine.submit(request)
        expect(name not in self.outputs, f"submit returned id {name!r} twice")
        expect(request.id in (None, name), f"submit returned id {name!r} for a request named {request.id!r}")
        self.outputs[name] = []
        return name

    def step(self) -> None:
        for output in self.engine.step():
            expect(output.request_id in self.outputs, f"an output names unknown request {output.request_id!r}")
            expect(
                not self._finished(output.request_id), f"request {output.request_id!r} goes on after its last output"
            )
            self.outputs[output.request_id].append(output)

    def to_end(self) -> list[tuple[int, ...]]:
        """Step until all are finished and all that is owed has come; tokens in order of submission."""
        for _ in range(MAX_STEPS):
            if all(self._finished(name) for name in self.outputs):
                break
            self.step()
        unfinished = [name for name in self.outputs if not self._finished(name)]
        expect(not unfinished, f"requests {unfinished} had no last output after {MAX_STEPS} steps")
        caps = self.engine.capabilities()
        for _ in range(caps.lag + caps.delay + 2):
            self.step()
        return [self.tokens(name) for name in self.outputs]

    def all_to_end(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        for request in requests:
            self.submit(request)
        return self.to_end()

    def tokens(self, name: RequestId) -> tuple[int, ...]:
        return tuple(token for output in self.outputs[name] for token in output.tokens)

    def _finished(self, name: RequestId) -> bool:
        return any(output.finished for output in self.outputs[name])


def cycle(caps: Capabilities) -> Course:
    """Every γ, up and down and in jumps."""
    return lambda turn: caps.gammas[(turn * 5 + turn // 3) % len(caps.gammas)]


def constant(gamma: int) -> Course:
    return lambda turn: gamma


PLAIN = constant(0)
DEEPEST = constant(1 << 30)
