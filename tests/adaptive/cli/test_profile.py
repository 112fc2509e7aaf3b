from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive.cli.options import EngineOptions
from policies import AdaSpec
from policies.cost import StepCost
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import ToyEngine

SMALL = ("--batches", "1,2", "--contexts", "70,100", "--gammas", "1,3", "--rounds", "2")


def test_writes_a_profile_that_adaspec_reads(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineOptions] = []

    def make(options: EngineOptions) -> ToyEngine:
        asked.append(options)
        return ToyEngine(stand=0)

    put_in_place(monkeypatch, make)
    out = tmp_path / "cost.json"
    ended = cli("profile", "--out", out, *SMALL)
    assert ended.code == 0, ended.err
    assert asked[0].synthetic is not None, "drafts must be full and none accepted"
    assert asked[0].max_batch == 2
    assert "One step at a context of 100 tokens" in ended.out
    assert f"adaspec:{out}" in ended.out
    cost = StepCost.load(out)
    # the toy takes 10 ms whatever it does
    assert cost.draft_s(2, 3, 200) + cost.verify_s(2, 8, 200) == pytest.approx(0.01, rel=0.05)
    assert cost.verify_s(1, 1, 100) == pytest.approx(0.01, rel=0.05)
    assert cost.samples == 2 * 2 * 3 * 2
    policy = AdaSpec(cost=out)
    assert policy.bind(ToyEngine().capabilities()).gammas[4][-1] == 8


def test_json(cli: Cli, toy: ToyEngine, tmp_path: Path) -> None:
    ended = cli("profile", "--out", tmp_path / "cost.json", *SMALL, "--json")
    result = json.loads(ended.out)
    assert {"file", "error", "held_out_error", "draft", "verify", "plain", "foreign_cpu"} <= result.keys()
    assert result["samples"] > 0
    assert "One step" in ended.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--batches", "one"], "--batches: 'one'"),
        (["--batches", "0"], "--batches: '0' is not a list of whole numbers from 1"),
        (["--batches", "9"], "batch 9 is more than the engine holds: 4"),
        (["--gammas", "0"], "at least one above"),
        (["--gammas", "1,12"], "gammas=[12] are not offered"),
        (["--drafter", "none"], "choose a drafter"),
        (["--out", "nowhere/cost.json"], "the folder of nowhere/cost.json"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_usage_errors(cli: Cli, toy: ToyEngine, args: list[str], problem: str) -> None:
    ended = cli("profile", *args)
    assert ended.code == 2
    assert problem in ended.err
