"""Opening an engine for a command, and the errors that come before one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adaptive.cli.errors import CliError, UsageError, usage
from adaptive.cli.memory import EngineMemory, print_memory
from adaptive.cli.options import MAX_GAMMA, EngineOptions
from adaptive.cli.render import Steps, stderr
from adaptive.contract import Capabilities, Engine, Policy
from adaptive.legal import checked_needs
from adaptive.lists import words
from adaptive.registry import get_policy
from adaptive.requests import Messages

LoadProgress = Callable[[int, int], None]


class TextCodec(Protocol):
    """The part of a tokenizer that the commands use."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def apply_chat(self, messages: Messages) -> str: ...


class TextEngine(Engine, Protocol):
    """An engine that reads and writes text and can say what it runs."""

    @property
    def tokenizer(self) -> TextCodec: ...

    def describe(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class Settled:
    """Engines around one model that are known to fit together, and of which nothing is loaded yet.

    `memory` is what each will take.
    """

    capabilities: tuple[Capabilities, ...]
    load: Callable[[LoadProgress], Sequence[TextEngine]]
    memory: tuple[EngineMemory, ...] = ()


def settle_engines(options: Sequence[EngineOptions], batches: Sequence[int] = ()) -> Settled:
    """An engine for each of `options`, which differ in what drafts. UsageError for settings that do not fit.

    `batches` are the batch sizes whose steps' memory is of interest; the largest, unless given.
    """
    from engine.config import SettingError

    try:
        return bundled_engines(options, batches or [options[0].max_batch])
    except SettingError as error:
        raise UsageError(str(error)) from error


def bundled_engines(options: Sequence[EngineOptions], batches: Sequence[int]) -> Settled:
    """The same, with its own errors. Tests put other engines here."""
    import torch

    from engine import load_plans, plan_engine
    from engine.memory import plan_memory
    from engine.models.source import open_model
    from engine.sketch import capabilities

    first = options[0]
    if first.threads is not None:
        torch.set_num_threads(first.threads)
    with Steps(f"opening {first.model}"):
        source = open_model(first.model, first.revision)
    plans = [
        plan_engine(
            source,
            drafter=one.drafter,
            draft_model=one.draft_model,
            max_batch=one.max_batch,
            context_len=one.context,
            max_gamma=MAX_GAMMA,
            max_tree_nodes=one.max_tree_nodes,
            dtype=one.dtype,
            device=one.device,
            prefix_reuse=one.prefix_reuse,
            synthetic=one.synthetic,
        )
        for one in options
    ]
    planned = plan_memory(plans, batches)
    parts = zip(options, planned.engines, planned.steps, strict=True)
    return Settled(
        tuple(map(capabilities, plans)),
        lambda progress: load_plans(plans, progress=progress),
        tuple(EngineMemory(one.drafter, kept, steps) for one, kept, steps in parts),
    )


def load(
    options: EngineOptions, policies: Mapping[str, Policy] | None = None, *, allow_lossy: bool = False
) -> TextEngine:
    """One engine, with progress shown; a policy that can not work with it is refused before."""
    settled = settle_engines([options])
    check_policies(settled.capabilities[0], policies or {}, "--policy", allow_lossy=allow_lossy)
    return load_settled(settled, [options])[0]


def load_settled(settled: Settled, options: Sequence[EngineOptions]) -> Sequence[TextEngine]:
    """Says what they will take, then loads them, with progress shown."""
    print_memory(stderr(), settled.memory)
    with Steps(f"loading {options[0].model}") as steps:
        return settled.load(steps.reached)


def parse_policy(spec: str, option: str = "--policy") -> Policy:
    with usage(option):
        return get_policy(spec)


def parse_policies(
    specs: Iterable[str], option: str = "--policies", known: Mapping[str, Policy] | None = None
) -> dict[str, Policy]:
    """Comma-separated names to policies; commas inside brackets belong to a policy's argument. `known` go first."""
    policies: dict[str, Policy] = {}
    for spec in words(specs):
        if spec in policies:
            raise UsageError(f"{option}: {spec!r} is named twice")
        policies[spec] = known[spec] if known and spec in known else parse_policy(spec, option)
    if not policies:
        raise UsageError(f"{option}: name at least one policy; `adaptive policies` lists them")
    return policies


def check_policies(
    caps: Capabilities, policies: Mapping[str, Policy], option: str = "--policies", *, allow_lossy: bool = False
) -> None:
    """Refuse, before anything runs, a policy that can not work with such an engine."""
    for spec, policy in policies.items():
        with usage(f"{option} {spec}"):
            fresh = policy.clone()
            checked_needs(fresh, fresh.bind(caps), caps, allow_lossy=allow_lossy)


def check_installation(package: Path) -> None:
    """PyPI's `adaptive` (adaptive sampling) installs a folder of the same name over ours; mixed, neither works."""
    foreign = [name for name in ("learner", "runner.py", "notebook_integration.py") if (package / name).exists()]
    if foreign:
        raise CliError(
            f"{package} also holds files of another package, PyPI's 'adaptive' ({', '.join(foreign)}). Run: "
            "pip uninstall adaptive adaptive-speculation, then pip install adaptive-speculation into a new environment"
        )


@contextmanager
def prompts_that_fit() -> Iterator[None]:
    """A prompt that the engine does not take is something to correct where prompts or the context are given."""
    from adaptive.benchmark import PromptError

    try:
        yield
    except PromptError as error:
        raise UsageError(str(error)) from error
