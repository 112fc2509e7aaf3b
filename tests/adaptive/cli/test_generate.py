from __future__ import annotations

from pathlib import Path

import pytest

from adaptive.cli import render
from tests.adaptive.cli.conftest import Cli
from tests.adaptive.cli.toy import ToyEngine

KEYS = {
    "id",
    "text",
    "tokens",
    "finish_reason",
    "ttft_ms",
    "tpot_ms",
    "steps",
    "drafted",
    "accepted",
    "tau",
    "alpha",
    "gamma_histogram",
}


def test_json_is_one_object_a_request_in_the_order_of_the_file(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    ended = cli("generate", "--prompts", prompt_file, "--policy", "fixed:3", "--max-batch", 2, "--json")
    assert ended.code == 0, ended.err
    records = ended.lines()
    assert [record["id"] for record in records] == ["a", "2", "c"]
    assert all(record.keys() >= KEYS for record in records)
    first = records[0]
    assert first["text"] == "<USER>FIRST OF THREE"
    assert first["tokens"] == [ord(character) for character in first["text"]]
    assert first["finish_reason"] == "length"
    assert first["steps"] == 7  # 20 tokens, three a step
    assert first["gamma_histogram"] == {"3": 7}
    assert first["tau"] == 20 / 7
    assert first["alpha"] == first["accepted"] / first["drafted"]


def test_nan_is_null(cli: Cli, toy: ToyEngine) -> None:
    (record,) = cli("generate", "--prompt", "abc", "--policy", "fixed:0", "--json").lines()
    assert record["drafted"] == 0
    assert record["alpha"] is None


def test_the_chat_template_is_applied_unless_raw(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    cli("generate", "--prompts", prompt_file, "--json")
    cli("generate", "--prompts", prompt_file, "--json", "--raw")
    assert toy.prompts[::3] == ["<user>first of three", "first of three"]
    assert toy.prompts[1::3] == ["<user>as a chat", "<user>as a chat"], "messages always go through the template"


def test_each_request_has_its_own_seed(cli: Cli, toy: ToyEngine) -> None:
    cli("generate", "--prompt", "a", "--prompt", "b", "--seed", 7, "--temperature", 1, "--json")
    assert toy.seeds == [7, 8]


def test_for_people_there_are_the_answers_and_a_table(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    out = cli("generate", "--prompts", prompt_file, "--policy", "fixed:2", "--raw").out
    assert "FIRST OF THREE" in out
    assert "policy fixed:2" in out
    assert "3.00" in out  # tokens a step


def test_a_single_answer_is_streamed_once(cli: Cli, toy: ToyEngine) -> None:
    out = cli("generate", "--prompt", "only [one] here", "--raw").out
    assert out.count("ONLY [ONE] HERE") == 1, "square brackets are text, not markup"


def test_logprobs(cli: Cli, toy: ToyEngine) -> None:
    (record,) = cli("generate", "--prompt", "ab", "--raw", "--logprobs", 1, "--json").lines()
    assert record["logprobs"] == [
        {"token": 65, "logprob": -0.5, "top": [[65, -0.5]]},
        {"token": 66, "logprob": -0.5, "top": [[66, -0.5]]},
    ]
    assert "log p" in cli("generate", "--prompt", "ab", "--raw", "--logprobs", 1).out


def test_progress_does_not_mix_with_the_result(cli: Cli, toy: ToyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = cli("generate", "--prompt", "ab", "--json")
    assert "loading" not in quick.err, "what takes no time needs no progress"
    monkeypatch.setattr(render, "PLAIN_LINE_EVERY_S", 0.0)
    ended = cli("generate", "--prompt", "ab", "--json")
    assert len(ended.out.splitlines()) == 1
    assert "loading smollm2-135m: 100%" in ended.err
