from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptive.cli.prompt_ids import token_ids
from adaptive.requests import Prompt
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import ToyCodec, ToyEngine

FAKE_PROGRAM = Path(__file__).parents[1] / "benchmark" / "fake_program.py"
ARM_KEYS = {
    "policy",
    "drafter",
    "tokens_per_s",
    "ratio",
    "ratio_min",
    "ratio_max",
    "ttft_ms",
    "tpot_ms",
    "tpot_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "tau",
    "alpha",
    "alpha_by_position",
    "wasted",
    "controller_us_per_step",
    "mismatches",
    "near_ties",
    "tasks",
}


def arms_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["policy"]: arm for arm in result["arms"]}


def test_json_file_and_tables(cli: Cli, toy: ToyEngine, prompt_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    ended = cli("bench", "--prompts", prompt_file, "--policies", "fixed:0,fixed:3", "--repeat", 2, "--json", target)
    assert ended.code == 0, ended.err
    result = json.loads(target.read_text(encoding="utf-8"))
    assert {"cpu", "cores", "foreign_cpu", "foreign_cpu_max", "engine"} <= result["machine"].keys()
    arms = arms_of(result)
    assert list(arms) == ["fixed:0", "fixed:3"]
    assert all(arm.keys() >= ARM_KEYS for arm in arms.values())
    plain, drafting = arms["fixed:0"], arms["fixed:3"]
    assert (plain["ratio"], plain["tau"], plain["alpha"], plain["wasted"]) == (1.0, 1.0, None, 0)
    assert plain["requests"] == 6
    assert plain["distinct_requests"] == 3
    assert 2 < drafting["tau"] <= 3
    assert drafting["wasted"] == drafting["drafted"] - drafting["accepted"] > 0
    assert drafting["controller_us_per_step"] > 0
    assert drafting["mismatches"] == 0
    assert list(drafting["tasks"]) == ["long", "short"]
    assert {"tokens_per_s", "ratio", "tau", "alpha"} <= drafting["tasks"]["long"].keys()
    assert "By task" in ended.out
    assert "every arm gave plain decoding's tokens for all 3 requests" in ended.out
    assert "Other processes used" in ended.out


def test_json_to_stdout_keeps_it_clean(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    ended = cli("bench", "--prompts", prompt_file, "--policies", "ema", "--repeat", 1, "--json", "-")
    assert list(arms_of(json.loads(ended.out))) == ["fixed:0", "ema"], "the baseline is always measured"
    assert "By task" in ended.err


def test_lost_tokens_are_found(cli: Cli, prompt_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, lambda options: ToyEngine(swaps_tokens=True))
    ended = cli("bench", "--prompts", prompt_file, "--policies", "fixed:0,fixed:3", "--repeat", 1, "--json", "-")
    arms = arms_of(json.loads(ended.out))
    assert (arms["fixed:0"]["mismatches"], arms["fixed:3"]["mismatches"]) == (0, 3)
    assert "fixed:3 3 of 3" in ended.err


def test_sampled_answers_are_not_compared(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    ended = cli("bench", "--prompts", prompt_file, "--temperature", 1, "--repeat", 1, "--json", "-")
    assert [arm["mismatches"] for arm in json.loads(ended.out)["arms"]] == [None] * 3


def test_programs_are_measured_beside(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    command = shlex.join([sys.executable, str(FAKE_PROGRAM)])
    args = ("--policies", "fixed:0,fixed:3", "--max-tokens", 5, "--repeat", 2, "--max-batch", 2, "--json", "-")
    ended = cli("bench", "--prompts", prompt_file, "--peer-program", f"fake={command}", *args)
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    theirs = arms_of(result)["fake"]
    assert theirs["tokens"] == 2 * (5 + 5 + 5)
    assert theirs["seconds"] == 2 * (0.25 + 0.25), "two batches a repeat, by its own clock"
    assert (theirs["mismatches"], theirs["near_ties"], theirs["tpot_ms"]) == (3, 0, None)
    pairs = {(one["task"], one["policy"]) for one in result["against_peers"]}
    assert pairs == {(task, policy) for task in ("long", "short", None) for policy in ("fixed:0", "fixed:3")}
    assert all(0 < one["ratio_min"] <= one["ratio"] <= one["ratio_max"] for one in result["against_peers"])
    assert "Against others" in ended.err
    assert "fake 3 of 3 (0 by near ties)" in ended.err


def test_without_peers_there_is_nothing_to_compare_with(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    ended = cli("bench", "--prompts", prompt_file, "--policies", "fixed:0", "--repeat", 1, "--json", "-")
    assert json.loads(ended.out)["against_peers"] == []
    assert "Against others" not in ended.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--peers", "vllm"), "--peers: 'vllm' is not known; choose from transformers, transformers-lookup"),
        (("--peers", "transformers", "--temperature", 1), "--peers: other libraries are compared greedily"),
        (("--peers", "transformers,transformers"), "there are two arms of the name 'transformers'"),
        (("--peers", "transformers-lookup", "--max-batch", 8), "serves one prompt at a time, and --max-batch is 8"),
        (("--peer-program", "python"), "--peer-program: 'python' is not of the form LABEL=COMMAND"),
        (("--peer-program", "x='"), '--peer-program: "\'" is not a command'),
        (("--peer-program", "ema=python"), "there are two arms of the name 'ema'"),
    ],
)
def test_peers_that_can_not_be(
    cli: Cli, toy: ToyEngine, prompt_file: Path, args: tuple[object, ...], message: str
) -> None:
    ended = cli("bench", "--prompts", prompt_file, *args)
    assert ended.code == 2
    assert message in ended.err


def test_a_program_that_fails_ends_with_1_and_its_words(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    command = shlex.join([sys.executable, str(FAKE_PROGRAM), "--misbehave", "not ready"])
    ended = cli("bench", "--prompts", prompt_file, "--peer-program", f"fake={command}")
    assert ended.code == 1
    assert "fake reports: there is no such model" in ended.err


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", [97, 98]), ([1, 2, 3], [1, 2, 3]), ([{"role": "r", "content": "c"}], [60, 114, 62, 99])],
)
def test_a_peer_reads_what_the_engine_reads(prompt: Prompt, expected: list[int]) -> None:
    assert token_ids(ToyCodec(), prompt) == expected
