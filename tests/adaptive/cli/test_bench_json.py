"""The JSON of a benchmark is an interface: what the page lists is what is written."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptive.cli.memory import EngineMemory
from tests.adaptive.cli.conftest import Cli
from tests.adaptive.cli.toy import ToyEngine
from tests.rules.project import ROOT

FAKE_PROGRAM = ROOT / "tests/adaptive/benchmark/fake_program.py"
ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
WORD = re.compile(r"`([^`]+)`")


def documented() -> dict[str, set[str]]:
    """Keys by place, from the table on the command line's page."""
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    table = page.partition("| where | keys |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = {place.replace("`", "").partition(",")[0]: set(WORD.findall(keys)) for place, keys in ROW.findall(table)}
    assert rows, "the table is not where this test looks for it"
    return rows


@pytest.fixture
def written(cli: Cli, toy: ToyEngine, prompt_file: Path) -> dict[str, Any]:
    program = f"fake={shlex.join([sys.executable, str(FAKE_PROGRAM)])}"
    args = ("--policies", "fixed:0,fixed:3", "--peer-program", program, "--repeat", 1, "--json", "-")
    result: dict[str, Any] = json.loads(cli("bench", "--prompts", prompt_file, *args).out)
    return result


def test_the_documented_keys_are_the_real_ones(written: dict[str, Any]) -> None:
    keys = documented()
    assert written.keys() == keys["at the top"]
    assert written["machine"].keys() == keys["machine"]
    assert written["settings"].keys() == keys["settings"]
    assert {key for pair in written["against_peers"] for key in pair} == keys["against_peers"]
    arms = written["arms"]
    assert {key for arm in arms for task in arm["tasks"].values() for key in task} == keys["a task"]
    assert {key for arm in arms for key in arm} == keys["arms"] | keys["a task"]
    assert EngineMemory(None, {}, {}).as_json().keys() == keys["memory"]
