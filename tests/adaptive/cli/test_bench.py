from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive.benchmark import PeerArm
from adaptive.cli import bench as command
from adaptive.requests import Prompt
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import ToyCodec, ToyEngine

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


def test_peers_are_measured_beside(
    cli: Cli, toy: ToyEngine, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = PeerArm("transformers", lambda item, max_tokens: [ord("X")] * 5)
    monkeypatch.setattr(command, "_peer_arms", lambda *args: [peer])
    ended = cli("bench", "--prompts", prompt_file, "--peers", "transformers", "--repeat", 1, "--json", "-")
    theirs = arms_of(json.loads(ended.out))["transformers"]
    assert theirs["tokens"] == 15
    assert theirs["tokens_per_s"] > 0
    assert theirs["mismatches"] == 3
    assert theirs["tpot_ms"] is None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", [97, 98]), ([1, 2, 3], [1, 2, 3]), ([{"role": "r", "content": "c"}], [60, 114, 62, 99])],
)
def test_a_peer_reads_what_the_engine_reads(prompt: Prompt, expected: list[int]) -> None:
    pytest.importorskip("torch")
    from adaptive.cli.peer import token_ids

    assert token_ids(ToyCodec(), prompt) == expected
