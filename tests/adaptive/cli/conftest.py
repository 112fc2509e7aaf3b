"""A command line in-process, with the toy engine in the place of the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adaptive.cli import main, session
from adaptive.cli.options import EngineOptions
from adaptive.cli.session import LoadProgress, Settled, TextEngine
from tests.adaptive.cli.toy import ToyEngine


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyEngine:
    engine = ToyEngine()
    put_in_place(monkeypatch, lambda options: engine)
    return engine


def put_in_place(monkeypatch: pytest.MonkeyPatch, make: Callable[[EngineOptions], TextEngine]) -> None:
    def settled(options: Sequence[EngineOptions], batches: Sequence[int]) -> Settled:
        engines = [make(one) for one in options]

        def load(progress: LoadProgress) -> Sequence[TextEngine]:
            progress(1, 1)
            return engines

        return Settled(tuple(engine.capabilities() for engine in engines), load)

    monkeypatch.setattr(session, "bundled_engines", settled)


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"id": "a", "prompt": "first of three", "task": "long"},
        {"id": 2, "prompt": [{"role": "user", "content": "as a chat"}], "task": "long"},
        {"id": "c", "prompt": "short", "task": "short"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    return path
