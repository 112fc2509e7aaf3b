"""Who else takes part in a benchmark: transformers in this process, any program in a process of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptive.cli.errors import UsageError
from adaptive.cli.options import LIBRARIES, LOOKUP, EngineOptions
from adaptive.cli.prompt_ids import token_ids
from adaptive.cli.render import Steps
from adaptive.cli.session import TextEngine
from adaptive.lists import words

if TYPE_CHECKING:
    from adaptive.benchmark import Arm, PeerProcess


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Libraries by name, programs by label and command."""

    libraries: tuple[str, ...]
    programs: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def labels(self) -> list[str]:
        return [*self.libraries, *(label for label, _ in self.programs)]


def peer_options(
    names: Sequence[str], programs: Sequence[str], *, batch: int, greedy: bool, taken: Sequence[str]
) -> PeerOptions:
    """What the two options ask for; `taken` are other arms' labels. Raises UsageError."""
    libraries = tuple(words(names))
    for name in libraries:
        if name not in LIBRARIES:
            raise UsageError(f"--peers: {name!r} is not known; choose from {', '.join(LIBRARIES)}")
    if LOOKUP in libraries and batch > 1:
        raise UsageError(f"--peers: {LOOKUP} serves one prompt at a time, and --max-batch is {batch}: make it 1")
    options = PeerOptions(libraries, tuple(map(_program, programs)))
    if options.labels and not greedy:
        raise UsageError("--peers: other libraries are compared greedily; leave --temperature at 0")
    labels = [*taken, *options.labels]
    for label in options.labels:
        if labels.count(label) > 1:
            raise UsageError(f"there are two arms of the name {label!r}: give each its own")
    return options


def _program(text: str) -> tuple[str, tuple[str, ...]]:
    label, _, command = text.partition("=")
    try:
        parts = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--peer-program: {command!r} is not a command ({error})") from error
    if not label.strip() or not parts:
        raise UsageError(f"--peer-program: {text!r} is not of the form LABEL=COMMAND")
    return label.strip(), parts


@contextmanager
def peer_arms(
    engine: TextEngine, options: PeerOptions, wanted: EngineOptions, batch: int, *, ignore_eos: bool
) -> Iterator[list[Arm]]:
    """The arms, `batch` prompts side by side; programs are started here and end with the block.

    PeerError when one can not serve.
    """
    arms: list[Arm] = []
    if options.libraries:
        from adaptive.cli.transformers_peer import transformers_arms

        arms += transformers_arms(engine, options.libraries, wanted, batch, ignore_eos=ignore_eos)
    with ExitStack() as stack:
        if options.programs:
            from adaptive.benchmark import started

            for label, command in options.programs:
                with Steps("bench") as steps:
                    steps.begin(f"starting {label}")
                    process = stack.enter_context(started(label, command))
                arms.append(_program_arm(engine, process, batch))
        yield arms


def _program_arm(engine: TextEngine, process: PeerProcess, batch: int) -> Arm:
    from adaptive.benchmark import ProcessArm

    ends = tuple(sorted(engine.tokenizer.eos_ids))
    return ProcessArm(process, lambda item: token_ids(engine.tokenizer, item.prompt), ends, batch)
