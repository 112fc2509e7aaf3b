"""The controller's cost is that of real decisions: every policy works in its rig, and its figures are in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import bench.controller_overhead as overhead
from bench.control.arms import MAX_GAMMA, Arm, Rig, spread
from bench.control.trace import Trace
from bench.sglang_oracle import OracleUnavailableError

BATCH = 80


@pytest.fixture(autouse=True)
def without_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise OracleUnavailableError("not here")

    monkeypatch.setattr(overhead, "load", refuse)


@pytest.mark.parametrize("name", list(overhead.POLICIES))
def test_every_policy_does_its_work_in_the_rig(name: str) -> None:
    make, stepwise = overhead.POLICIES[name]
    rig = Rig(make(), Trace.drawn(BATCH, MAX_GAMMA), BATCH, stepwise=stepwise)
    costs = [rig.step(k) for k in range(120)]
    stats = rig.controller.stats()
    assert (stats.policy_errors, stats.clamped, stats.unmatched) == ({}, {}, 0)
    assert stats.steps == 120
    assert stats.drafted > 0 or name.startswith("ema"), "at this size EMA's ladder may rest at 0"
    assert all(ns > 0 for cost in costs for ns in cost.values())
    assert any("extend" in cost for cost in costs) == (name == "adaspec, step by step")
    reasons = {"adasd v1": "js_v1", "adasd v2": "js_v2", "adaspec": "goodput", "adaspec, step by step": "goodput"}
    if name in reasons:
        assert stats.reasons[reasons[name]] > 60, "the lossy rule, or the forecast, is what is timed"


def test_a_trace_says_nothing_past_the_drafts() -> None:
    trace = Trace.drawn(5, 4)
    lens = np.array([0, 1, 2, 3, 4])
    signal = trace.at("js", 3, lens, 4)
    assert (~np.isnan(signal)).sum(axis=1).tolist() == lens.tolist()
    assert (trace.accepted(3, lens) <= lens).all()


def test_a_summary_by_hand() -> None:
    arm = Arm("x", lambda k: {})
    arm.costs = [
        {"view": 1000, "plan": 2000, "learn": 3000, "extend": 500},
        {"view": 3000, "plan": 2000, "learn": 5000},
    ]
    summary = arm.summary()
    assert summary["view_plan"]["median"] == 4.0
    assert summary["all"]["median"] == 8.0
    assert (summary["extend"]["median"], summary["learn"]["mean"], summary["report"]) == (0.5, 4.0, None)
    assert spread([]) is None


def test_it_prints_a_table_and_writes_the_figures(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(overhead.main)
    out = tmp_path / "control.json"
    few = ["--batches", "4,256", "--policies", "empty;adasd v2", "--steps", "3", "--rounds", "1", "--json", str(out)]
    ended = CliRunner().invoke(app, few, env={"COLUMNS": "200"})
    assert ended.exit_code == 0, ended.output
    assert "without SGLang 0.5.23: not here" in ended.output
    assert "adasd v2, view_plan" in ended.output
    record = json.loads(out.read_text())
    assert [one["batch"] for one in record["batches"]] == [4, 256]
    assert [arm["policy"] for arm in record["batches"][1]["arms"]] == ["empty", "adasd v2"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--batches", "many"], "'many' is not a list"),
        (["--batches", "0"], "whole numbers from 1"),
        (["--policies", "x"], "not meas"),
    ],
)
def test_mistakes_are_named(args: list[str], problem: str) -> None:
    app = typer.Typer()
    app.command()(overhead.main)
    ended = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert problem in ended.output
