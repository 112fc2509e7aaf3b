from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from adaptive.cli.options import EngineOptions
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import ToyEngine

TEXT = """
model: of-the-file
engine: {max_batch: 2}
policy: {kind: ema, start: 1}
slo: {tpot_ms: 6, classes: {short: 1}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """What engines were asked for."""
    asked: list[EngineOptions] = []

    def make(options: EngineOptions) -> ToyEngine:
        asked.append(options)
        return ToyEngine()

    put_in_place(monkeypatch, make)
    return asked


def test_check(cli: Cli, config: Path, tmp_path: Path) -> None:
    ended = cli("config", "check", config)
    assert (ended.code, ended.err) == (0, "")
    assert "is right: model of-the-file, drafter ngram, policy ema" in ended.out
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("policy: {kind: fixed, gama: 3}\n")
    ended = cli("config", "check", wrong)
    assert ended.code == 2
    assert "unknown key 'policy.gama', did you mean 'gamma'?" in ended.err
    missing = tmp_path / "missing.yaml"
    missing.write_text("policy: {kind: adaspec, cost: nowhere.json}\n")
    ended = cli("config", "check", missing)
    assert ended.code == 2
    assert "nowhere.json: No such file" in ended.err
    assert cli("config", "check", tmp_path / "none.yaml").code == 2


def test_show(cli: Cli, config: Path) -> None:
    shown = yaml.safe_load(cli("config", "show", config).out)
    assert shown["policy"]["backoff"] == 128, "defaults are filled in"
    assert json.loads(cli("config", "show", config, "--json").out) == shown
    assert shown["engine"] == {"max_batch": 2}, "what is not set is left out"
    assert "null" not in cli("config", "show", config).out


def test_schema(cli: Cli) -> None:
    schema = json.loads(cli("config", "schema").out)
    assert {"model", "drafter", "policy", "slo", "allow_lossy"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_generate_takes_the_files_settings(cli: Cli, config: Path, opened: list[EngineOptions]) -> None:
    ended = cli("generate", "--config", config, "--prompt", "hello", "--raw")
    assert ended.code == 0, ended.err
    assert (opened[0].model, opened[0].max_batch, opened[0].drafter) == ("of-the-file", 2, "ngram")
    assert "policy ema" in ended.out
    assert "Limits on the time per token" in ended.out
    assert "1 (100%)" in ended.out, "the toy takes 5 ms per token"


def test_options_win_over_the_file(cli: Cli, config: Path, opened: list[EngineOptions]) -> None:
    ended = cli(
        "generate", "--config", config, "--prompt", "hello", "--raw", "--policy", "fixed:2", "--model", "of-the-option"
    )
    assert ended.code == 0, ended.err
    assert (opened[0].model, opened[0].max_batch) == ("of-the-option", 2)
    assert "policy fixed:2" in ended.out


def test_a_trained_drafter_needs_no_draft_model(cli: Cli, tmp_path: Path, opened: list[EngineOptions]) -> None:
    path = tmp_path / "eagle.toml"
    path.write_text('[drafter]\nkind = "eagle3"\n', encoding="utf-8")
    assert cli("generate", "--config", path, "--prompt", "hello").code == 0
    assert (opened[0].drafter, opened[0].draft_model) == ("eagle3", None)


def test_bench_compares_the_files_policy(
    cli: Cli, config: Path, opened: list[EngineOptions], prompt_file: Path
) -> None:
    ended = cli("bench", "--config", config, "--prompts", prompt_file, "--repeat", 1, "--json", "-")
    assert ended.code == 0, ended.err
    arms = {arm["policy"]: arm for arm in json.loads(ended.out)["arms"]}
    assert list(arms) == ["fixed:0", "ema"]
    # 5 ms a token keep the default of 6 ms; the class of task "short" has 1 ms
    assert arms["ema"]["slo"]["long"]["share"] == 1.0
    assert arms["ema"]["slo"]["short"]["share"] == 0.0
    named = cli(
        "bench",
        "--config",
        config,
        "--prompts",
        prompt_file,
        "--repeat",
        1,
        "--json",
        "-",
        "--policies",
        "fixed:3,config",
    )
    assert [arm["policy"] for arm in json.loads(named.out)["arms"]] == ["fixed:0", "fixed:3", "ema"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["generate", "--prompt", "x", "--policy", "config"], "takes --config FILE"),
        (["bench", "--policies", "config"], "takes --config FILE"),
        (["generate", "--prompt", "x", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["generate", "--prompt", "x", "--policy", "fixed:1,fixed:2"], "takes one policy, got 2"),
        (["generate", "--prompt", "x", "--policy", "adaspec:nowhere.json"], "nowhere.json"),
        (["generate", "--prompt", "x", "--policy", "adasd:v9"], "adasd:lossless"),
    ],
)
def test_usage_errors(cli: Cli, toy: ToyEngine, args: list[str], problem: str) -> None:
    ended = cli(*args)
    assert ended.code == 2
    assert problem in ended.err


def test_lossy_policies_need_the_files_consent(cli: Cli, toy: ToyEngine, tmp_path: Path) -> None:
    ended = cli("generate", "--prompt", "x", "--policy", "adasd")
    assert ended.code == 2
    assert "AdaSD: drafter 'ngram' (ngram) does not tell its entropy" in ended.err
