"""The command line is an interface: its help is recorded, so that a change to it is a decision and shows in a diff.

`make snapshots` accepts the present help.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from adaptive.cli import app
from tests.rules.project import ROOT

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "ADAPTIVE_UPDATE_SNAPSHOTS"
RUN = "from adaptive.cli import main; main()"
# The whole environment: width and colour are read from several variables, some of them at import.
PLAIN = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


def _commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in sorted(group.commands.items()):
        if isinstance(command, TyperGroup):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


def _all_commands() -> list[tuple[str, ...]]:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    return list(_commands(root))


def _file_name(path: tuple[str, ...]) -> str:
    return "-".join(("adaptive", *path)) + ".txt"


def _help(path: tuple[str, ...]) -> str:
    command = [sys.executable, "-c", RUN, *path, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


@pytest.mark.parametrize("path", _all_commands(), ids=lambda path: " ".join(("adaptive", *path)))
def test_help_is_the_recorded_one(path: tuple[str, ...]) -> None:
    snapshot = SNAPSHOTS / _file_name(path)
    text = _help(path)
    if os.environ.get(UPDATE):
        snapshot.write_text(text, encoding="utf-8")
    assert snapshot.exists(), f"no record of `adaptive {' '.join(path)}`: run `make snapshots`"
    assert text == snapshot.read_text(encoding="utf-8"), "the help has changed: `make snapshots` accepts it"


def test_no_record_is_left_of_a_command_that_is_gone() -> None:
    expected = {_file_name(path) for path in _all_commands()}
    assert {path.name for path in SNAPSHOTS.glob("*.txt")} == expected


def test_every_command_says_what_it_does() -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert [name for name, command in root.commands.items() if not command.help] == []
