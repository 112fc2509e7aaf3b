"""The first check on a GPU runs on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from bench import gpu
from tests.engine.course import Course


def run(*options: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(gpu.main)
    ended = CliRunner().invoke(app, options)
    return ended.exit_code, ended.output


def test_on_a_cpu_replay_and_late_are_compared_with_eager(tmp_path: Path) -> None:
    target = tmp_path / "gpu.json"
    status, output = run("--device", "cpu", "--tiny", "--json", str(target))
    assert status == 0, output
    assert "stage 1 on cpu" in output
    record = json.loads(target.read_text(encoding="utf-8"))
    runs = record["runs"]
    assert [(run["model"], run["backend"]) for run in runs] == [
        (model, backend) for model in gpu.VARIANTS for backend in ("eager", "replay", "late")
    ]
    assert all(run["passed"] and run["waits"] is None and run["pieces"] > 30 for run in runs)


def test_a_difference_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(*arguments: object) -> Course:
        return Course(steps=[(next(count), [], [], [])])

    count = iter(range(100))
    monkeypatch.setattr(gpu, "take_course", lie)
    assert run("--device", "cpu", "--tiny")[0] == 1


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, output = run()
    assert status == 2
    assert "--device cpu" in output


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device and torch finds none")
def test_on_a_gpu() -> None:
    status, output = run("--tiny")
    assert status == 0, output
