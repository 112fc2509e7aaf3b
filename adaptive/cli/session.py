"""Opening an engine for a command, and the errors that come before one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from adaptive.cli.errors import CliError, UsageError, usage
from adaptive.cli.options import MAX_GAMMA, EngineOptions
from adaptive.cli.render import Steps
from adaptive.contract import Engine, Policy
from adaptive.legal import checked_needs
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


def open_engine(options: EngineOptions, progress: LoadProgress) -> TextEngine:
    """The bundled engine. Tests put another one here."""
    from engine import load_engine

    return load_engine(
        options.model,
        revision=options.revision,
        drafter=options.drafter,
        draft_model=options.draft_model,
        max_batch=options.max_batch,
        context_len=options.context,
        max_gamma=MAX_GAMMA,
        max_tree_nodes=options.max_tree_nodes,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        prefix_reuse=options.prefix_reuse,
        synthetic=options.synthetic,
        progress=progress,
    )


def load(options: EngineOptions) -> TextEngine:
    """`open_engine` with progress shown."""
    with Steps(f"loading {options.model}") as steps:
        return open_engine(options, steps.reached)


def parse_policy(spec: str, option: str = "--policy") -> Policy:
    with usage(option):
        return get_policy(spec)


def parse_policies(
    specs: Iterable[str], option: str = "--policies", known: Mapping[str, Policy] | None = None
) -> dict[str, Policy]:
    """Comma-separated names to policies; commas inside brackets belong to a policy's argument. `known` go first."""
    policies: dict[str, Policy] = {}
    for spec in (part for text in specs for part in split_specs(text)):
        if spec in policies:
            raise UsageError(f"{option}: {spec!r} is named twice")
        policies[spec] = known[spec] if known and spec in known else parse_policy(spec, option)
    if not policies:
        raise UsageError(f"{option}: name at least one policy; `adaptive policies` lists them")
    return policies


def split_specs(text: str) -> list[str]:
    """Split at commas outside of brackets.

    >>> split_specs("fixed:0,schedule:[[1,4,5]],ema")
    ['fixed:0', 'schedule:[[1,4,5]]', 'ema']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def check_policies(
    engine: Engine, policies: Mapping[str, Policy], option: str = "--policies", *, allow_lossy: bool = False
) -> None:
    """Refuse, before anything runs, a policy that can not work with this engine."""
    caps = engine.capabilities()
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
