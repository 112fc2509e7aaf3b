"""Consent on the command line and in files reaches requests, and what it cost is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adaptive.cli.conftest import Cli
from tests.engine.gguf_files import TinyGguf
from tests.rules.project import ROOT

ARGS = ("--max-tokens", 24, "--ignore-eos", "--max-batch", 2, "--threads", 1, "--seed", 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and another of the same tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    return TinyGguf().write(folder / "tiny.gguf"), TinyGguf(tied=False).write(folder / "other.gguf")


def with_draft(models: tuple[Path, Path]) -> tuple[object, ...]:
    return ("--model", models[0], "--drafter", "model", "--draft-model", models[1])


def test_a_lossy_policy_takes_consent(cli: Cli, models: tuple[Path, Path]) -> None:
    ended = cli("generate", "--prompt", "hello", "--policy", "adasd", *with_draft(models), *ARGS)
    assert ended.code == 2
    assert "lossy acceptance" in ended.err
    ended = cli("generate", "--prompt", "hello", "--policy", "adasd", "--allow-lossy", *with_draft(models), *ARGS)
    assert ended.code == 0, ended.err
    assert "Policy: exact_share" in ended.out


def test_the_lossy_example_runs(cli: Cli, models: tuple[Path, Path], prompt_file: Path) -> None:
    """With tiny models in place of the ones it names."""
    example = ROOT / "examples/configs/lossy.toml"
    ended = cli("generate", "--config", example, "--prompts", prompt_file, "--json", *with_draft(models), *ARGS)
    assert ended.code == 0, ended.err
    assert all({"lossy_accepted", "divergence_spent"} <= record.keys() for record in ended.lines())


def test_a_rule_from_a_file_acts_and_its_cost_is_shown(
    cli: Cli, models: tuple[Path, Path], prompt_file: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    rule = "acceptance: {kind: typical, params: {epsilon: 1.0e-5, delta: 1.0}}"
    config.write_text(f"policy: fixed:3\n{rule}\nallow_lossy: true\n", encoding="utf-8")
    ended = cli("generate", "--config", config, "--prompts", prompt_file, "--json", *with_draft(models), *ARGS)
    assert ended.code == 0, ended.err
    assert all(record["lossy_accepted"] > 0 and record["divergence_spent"] > 0 for record in ended.lines())
    shown = cli("generate", "--config", config, "--prompts", prompt_file, *with_draft(models), *ARGS)
    assert "beyond" in shown.out
    assert "policy fixed:3+typical" in shown.out
    refused = tmp_path / "refused.yaml"
    refused.write_text(f"policy: fixed:3\n{rule}\n", encoding="utf-8")
    assert cli("generate", "--config", refused, "--prompts", prompt_file, *with_draft(models), *ARGS).code == 2


def test_bench_tells_it_too(cli: Cli, models: tuple[Path, Path], prompt_file: Path) -> None:
    args = ("--policies", "fixed:0,adasd:v1", "--allow-lossy", "--repeat", 1, "--json", "-")
    ended = cli(
        "bench",
        "--prompts",
        prompt_file,
        *args,
        *with_draft(models),
        "--max-tokens",
        8,
        "--max-batch",
        2,
        "--threads",
        1,
    )
    assert ended.code == 0, ended.err
    arms = json.loads(ended.out)["arms"]
    assert [arm["policy"] for arm in arms] == ["fixed:0", "adasd:v1"]
    assert all({"lossy_accepted", "divergence_spent"} <= arm.keys() for arm in arms)


def test_bench_tells_what_is_left_of_the_answers(
    cli: Cli, models: tuple[Path, Path], prompt_file: Path, tmp_path: Path
) -> None:
    config, found = tmp_path / "run.yaml", tmp_path / "found.json"
    config.write_text(
        "policy: fixed:3\nacceptance: {kind: typical, params: {epsilon: 1.0e-5, delta: 1.0}}\nallow_lossy: true\n",
        encoding="utf-8",
    )
    args = ("--config", config, "--policies", "fixed:0,fixed:2,config", "--repeat", 1, "--json", found)
    ended = cli("bench", "--prompts", prompt_file, *args, *with_draft(models), *ARGS)
    assert ended.code == 0, ended.err
    plain, exact, lossy = json.loads(found.read_text(encoding="utf-8"))["arms"]
    assert plain["agreement"] == exact["agreement"] == 1
    assert lossy["lossy_accepted"] > 0
    assert 0 <= lossy["agreement"] < 1
    shown = ended.out[ended.out.index("Beyond the exact rule") :]
    assert "typical" in shown
    assert "fixed:2" not in shown.split("Lossless check")[0]
