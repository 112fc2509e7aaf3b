"""Several drafters and batch sizes in one benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive.cli.options import EngineOptions
from engine.models.source import open_model
from tests.adaptive.cli.conftest import Cli, Ended, put_in_place
from tests.adaptive.cli.toy import ToyEngine
from tests.engine.gguf_files import TinyGguf
from tests.engine.heads import HeadSpec, write_heads

Bench = Callable[..., Ended]
POLICIES = "fixed:0,fixed:1,fixed:3,ema"


@pytest.fixture
def bench(cli: Cli, prompt_file: Path) -> Bench:
    def run(*args: object) -> Ended:
        return cli("bench", "--prompts", prompt_file, "--policies", POLICIES, "--repeat", 1, "--json", "-", *args)

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """What engines were asked for."""
    options: list[EngineOptions] = []

    def make(one: EngineOptions) -> ToyEngine:
        options.append(one)
        return ToyEngine(max_batch=one.max_batch, stand={None: 0, "ngram": 1}.get(one.drafter, 2))

    put_in_place(monkeypatch, make)
    return options


def names(result: dict[str, Any]) -> list[tuple[int, str | None, str]]:
    return [(arm["batch"], arm["drafter"], arm["policy"]) for arm in result["arms"]]


def test_every_policy_meets_every_drafter_and_plain_decoding_runs_once(
    bench: Bench, asked: list[EngineOptions]
) -> None:
    ended = bench("--drafters", "ngram,medusa", "--batches", "4,1")
    assert ended.code == 0, ended.err
    assert [(one.drafter, one.max_batch) for one in asked] == [(None, 4), ("ngram", 4), ("medusa", 4)]
    result = json.loads(ended.out)
    drafting = POLICIES.split(",")[1:]
    assert names(result) == [
        (batch, drafter, policy)
        for batch in (1, 4)
        for drafter, policies in ((None, ["fixed:0"]), ("ngram", drafting), ("medusa", drafting))
        for policy in policies
    ]
    assert [arm["ratio"] for arm in result["arms"] if arm["policy"] == "fixed:0"] == [1.0, 1.0]
    by_name = {name: arm["alpha"] for name, arm in zip(names(result), result["arms"], strict=True)}
    assert by_name[1, "medusa", "fixed:3"] > by_name[1, "ngram", "fixed:3"], "each on its own engine"
    assert all(arm["mismatches"] == 0 for arm in result["arms"])
    assert result["settings"]["batches"] == [1, 4]


def test_the_table_is_one_and_fits_on_a_page(bench: Bench, asked: list[EngineOptions]) -> None:
    lines = bench("--drafters", "ngram,medusa", "--batches", "1,4").err.splitlines()
    lines = lines[: lines.index(next(line for line in lines if "Lossless" in line)) + 2]
    assert max(map(len, lines)) <= 100
    shown = [line.split("  ")[0].rstrip() for line in lines]
    group = ["ngram", " fixed:1", " fixed:3", " ema", "medusa", " fixed:1", " fixed:3", " ema"]
    start = shown.index("batch 1")
    block = [line for line in shown[start:] if line][: 2 * (len(group) + 2)]
    assert block == ["batch 1", "fixed:0", *group, "batch 4", "fixed:0", *group]
    assert " ".join(" ".join(lines).split()).count("by position") == 1
    assert lines[start - 2].split()[:2] == ["arm", "c"]
    assert lines[start - 3].split() == ["long", "short"]
    assert "Batch 1. Lossless check: every arm" in "\n".join(lines)


def test_more_tasks_than_fit_go_into_a_further_table(cli: Cli, asked: list[EngineOptions], tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": "abc", "task": f"task{n}"}) + "\n" for n in range(6)))
    ended = cli("bench", "--prompts", path, "--drafters", "ngram", "--policies", "fixed:2", "--repeat", 1)
    assert ended.code == 0, ended.err
    assert max(map(len, ended.out.partition("Lossless")[0].splitlines())) <= 100
    assert all(ended.out.count(f"task{n}") == 1 for n in range(6))
    assert ended.out.count(" fixed:2") == 2


def test_a_draft_model_is_named_with_its_drafter(bench: Bench, asked: list[EngineOptions]) -> None:
    result = json.loads(bench("--drafters", "ngram,eagle3=mine,model").out)
    assert [one.draft_model for one in asked] == [None, None, "mine", None]
    assert result["settings"]["draft_models"] == {"eagle3": "mine"}


def test_batches_alone(bench: Bench, asked: list[EngineOptions]) -> None:
    result = json.loads(bench("--batches", "1,2").out)
    assert [(one.drafter, one.max_batch) for one in asked] == [("ngram", 2)]
    assert names(result) == [(batch, "ngram", policy) for batch in (1, 2) for policy in POLICIES.split(",")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--drafters", "ngram,oracle"), "--drafters: 'oracle' is not known"),
        (("--drafters", "ngram,ngram"), "--drafters: 'ngram' is named twice"),
        (("--drafters", "none,ngram"), "leave 'none' out"),
        (("--drafters", ","), "name at least one of ngram"),
        (("--drafters", "ngram", "--drafter", "medusa"), "--drafters and --drafter exclude each other"),
        (("--batches", "1,2", "--max-batch", 2), "--batches and --max-batch exclude each other"),
        (("--batches", "0,2"), "--batches: '0,2' is not a list of whole numbers from 1"),
        (("--batches", "two"), "--batches: 'two' is not a list of whole numbers"),
        (("--drafters", "ngram,medusa", "--policies", "fixed:9"), "--drafters ngram --policies fixed:9"),
    ],
)
def test_usage_errors(bench: Bench, asked: list[EngineOptions], args: tuple[object, ...], message: str) -> None:
    ended = bench(*args)
    assert ended.code == 2, ended.err
    assert message in ended.err


def test_real_engines_share_their_weights_and_agree(cli: Cli, prompt_file: Path, tmp_path: Path) -> None:
    model = TinyGguf().write(tmp_path / "tiny.gguf")
    spec = HeadSpec("eagle3", open_model(model).config, ids=tuple(range(3, 80)))
    heads = write_heads(tmp_path / "heads", spec)
    ended = cli(
        *("bench", "--prompts", prompt_file, "--model", model, "--policies", "fixed:0,fixed:2"),
        *("--drafters", f"ngram,eagle3={heads},model={model}", "--batches", "1,2"),
        *("--max-tokens", 12, "--ignore-eos", "--repeat", 1, "--threads", 1, "--json", "-"),
    )
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert [arm["mismatches"] for arm in result["arms"]] == [0] * 8
    copy = [arm for arm in result["arms"] if arm["drafter"] == "model"]
    assert [arm["alpha"] for arm in copy] == [1.0, 1.0], "it drafts for itself"
    assert all(arm["cost_ratio"] > 0 for arm in result["arms"] if arm["policy"] == "fixed:2")
    assert [arm["cost_ratio"] for arm in result["arms"] if arm["policy"] == "fixed:0"] == [None, None]
    weights = ["target weights" in one["bytes"] for one in result["memory"]]
    assert weights == [True, False, False, False]
    assert [list(one["step_bytes"]) for one in result["memory"]] == [["1", "2"]] * 4
    assert "Memory in MiB" in ended.err


def test_a_policy_too_deep_for_one_drafter_meets_the_others(cli: Cli, prompt_file: Path, tmp_path: Path) -> None:
    model = TinyGguf().write(tmp_path / "tiny.gguf")
    heads = write_heads(tmp_path / "heads", HeadSpec("medusa", open_model(model).config, count=2))
    ended = cli(
        *("bench", "--prompts", prompt_file, "--model", model, "--policies", "fixed:0,fixed:2,fixed:3"),
        *("--drafters", f"ngram,medusa={heads}", "--max-tokens", 4, "--repeat", 1, "--threads", 1, "--json", "-"),
    )
    assert ended.code == 0, ended.err
    assert [(arm["drafter"], arm["policy"]) for arm in json.loads(ended.out)["arms"]] == [
        (None, "fixed:0"),
        ("ngram", "fixed:2"),
        ("ngram", "fixed:3"),
        ("medusa", "fixed:2"),
    ]
    assert "left out: --drafters medusa --policies fixed:3" in ended.err
