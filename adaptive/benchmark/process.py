"""A competitor in a process of its own: one that needs another environment, or is not written in Python.

It speaks JSON, one object a line. First it says, once it is ready, `{"ready": {...}}` with whatever it wants to tell
of itself. To `{"prompts": [[1, 2], [3]], "max_tokens": 64, "stop_ids": [2]}` it decodes the prompts side by side,
greedily, each up to and with its first stop token, and answers `{"tokens": [[...], [...]], "seconds": 1.5}`. What goes
wrong it tells as `{"error": "..."}`, and it ends when its input does. Standard error is its own.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, TypeGuard

from adaptive.benchmark.arms import Run, in_batches
from adaptive.benchmark.machine import CpuMeter
from adaptive.benchmark.prompts import PromptItem
from adaptive.requests import Sampling

LINES_SHOWN = 6
SHOWN = 200  # characters of an answer that is not understood
GRACE_S = 10.0


class PeerError(RuntimeError):
    """Another program could not be started or did not answer; the message has its own last words."""


@dataclass(frozen=True)
class Decoded:
    """`seconds` is the program's own clock around decoding."""

    tokens: list[list[int]]
    seconds: float


class PeerProcess:
    """A started program. Close it, or use it as `with started(...)`."""

    def __init__(self, label: str, command: Sequence[str]) -> None:
        """Returns once the program is ready; PeerError when it can not be started or says that it can not serve."""
        self.label = label
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the program)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8"
            )
        except OSError as error:
            self._errors.close()
            raise PeerError(f"{label} could not be started ({shlex.join(command)}): {error}") from error
        try:
            facts = self._read().get("ready")
            if not isinstance(facts, dict):
                raise self._failure("said something else than that it is ready")
        except PeerError:
            self.close()
            raise
        self.facts: Mapping[str, object] = facts

    @property
    def pid(self) -> int:
        return self._process.pid

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int, stop_ids: Sequence[int]) -> Decoded:
        """Greedy answers to the prompts, in their order. PeerError when there is none, or not of the agreed form."""
        request = {
            "prompts": [list(prompt) for prompt in prompts],
            "max_tokens": max_tokens,
            "stop_ids": list(stop_ids),
        }
        try:
            _pipe(self._process.stdin).write(json.dumps(request) + "\n")
            _pipe(self._process.stdin).flush()
        except OSError as error:
            raise self._failure("takes no more requests") from error
        reply = self._read()
        tokens, seconds = reply.get("tokens"), reply.get("seconds")
        if not isinstance(seconds, int | float) or not _is_answer(tokens, len(prompts)):
            raise self._failure(f"answered {json.dumps(reply)[:SHOWN]} to {len(prompts)} prompts")
        return Decoded(tokens, float(seconds))

    def close(self) -> None:
        """End of input ends it; if not, it is killed."""
        with suppress(OSError):  # what it did not read before it died
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise self._failure("ended")
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise self._failure(f"wrote {line.strip()[:SHOWN]!r}, which is not JSON") from error
        if not isinstance(record, dict):
            raise self._failure(f"wrote {line.strip()[:SHOWN]!r}, which is not an object")
        if "error" in record:
            raise self._failure(f"reports: {record['error']}")
        return record

    def _failure(self, what: str) -> PeerError:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-LINES_SHOWN:]
        said = "".join(f"\n  {line}" for line in lines)
        return PeerError(f"{self.label} {what}" + (f". Its last lines:{said}" if said else ""))


@contextmanager
def started(label: str, command: Sequence[str]) -> Iterator[PeerProcess]:
    """The program while it is needed."""
    process = PeerProcess(label, command)
    try:
        yield process
    finally:
        process.close()


@dataclass(frozen=True)
class ProcessArm:
    """A started program as an arm, `batch` prompts at a time. `encode(item)` gives a prompt's token ids.

    Time is the program's own, so that what the pipe takes is not counted against it.
    """

    process: PeerProcess
    encode: Callable[[PromptItem], Sequence[int]] = field(repr=False)
    stop_ids: tuple[int, ...] = ()
    batch: int = 1
    drafter: str | None = None

    @property
    def label(self) -> str:
        return self.process.label

    @property
    def shown(self) -> str:
        return self.label

    def run(self, items: Sequence[PromptItem], sampling: Sampling) -> Run:
        tokens: dict[str, tuple[int, ...]] = {}
        seconds, stop_ids = 0.0, () if sampling.ignore_eos else self.stop_ids
        with CpuMeter(self.process.pid) as meter:
            for group in in_batches(items, self.batch):
                decoded = self.process.decode([self.encode(item) for item in group], sampling.max_tokens, stop_ids)
                tokens |= {item.id: tuple(ids) for item, ids in zip(group, decoded.tokens, strict=True)}
                seconds += decoded.seconds
        return Run(seconds=seconds, foreign_cpu=meter.foreign, tokens=tokens)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _is_answer(tokens: object, count: int) -> TypeGuard[list[list[int]]]:
    return (
        isinstance(tokens, list)
        and len(tokens) == count
        and all(isinstance(ids, list) and all(isinstance(token, int) for token in ids) for ids in tokens)
    )
