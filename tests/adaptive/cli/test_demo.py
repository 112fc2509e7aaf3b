from __future__ import annotations

import json
import os

import pytest
from rich.console import Console

from adaptive import benchmark
from adaptive.benchmark import Answer, PromptItem, StepTrace
from adaptive.cli import demo as command
from adaptive.cli.timeline import gamma_marks, print_timeline
from tests.adaptive.cli.conftest import Cli
from tests.adaptive.cli.toy import ToyEngine


@pytest.fixture(autouse=True)
def no_fetch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    fetched: list[str] = []
    monkeypatch.setattr(command, "fetch_with_progress", fetched.append)
    monkeypatch.setattr(command, "BUSY", 1.0)  # what the machine does meanwhile is no matter of these tests
    return fetched


def test_demo_shows_an_answer_a_comparison_and_where_gamma_went(cli: Cli, toy: ToyEngine, no_fetch: list[str]) -> None:
    ended = cli("demo", "--max-tokens", 24)
    assert ended.code == 0, ended.err
    assert no_fetch == ["smollm2-135m"]
    assert "One answer, live" in ended.out
    for task in ("free", "code-edit", "text-edit"):
        assert ended.out.count(f"│ {task} ") == 3, "three policies a task"
        assert f"\n{task} " in ended.out, "a line of marks a task"
    assert "Where γ went" in ended.out
    assert "Why" in ended.out
    assert "\x1b" not in ended.out, "no control codes where there is no terminal"


def test_demo_with_another_drafter(cli: Cli, toy: ToyEngine) -> None:
    ended = cli("demo", "--max-tokens", 12, "--drafter", "medusa", "--json")
    assert {arm["drafter"] for arm in json.loads(ended.out)["arms"]} == {"medusa"}
    assert "heads trained on the model's hidden states" in ended.err


def test_demo_json(cli: Cli, toy: ToyEngine) -> None:
    result = json.loads(cli("demo", "--max-tokens", 12, "--json").out)
    assert [arm["policy"] for arm in result["arms"]] == ["fixed:0", "fixed:3", "ema"]
    assert result["answer"]["tokens"]
    for run in result["timeline"]:
        assert len(run["gamma"]) == len(run["accepted"]) == len(run["reason"]) > 0


def step(gamma: int, accepted: int = 0, *, found: bool = True) -> StepTrace:
    return StepTrace(gamma=gamma, reason="because", rows=1, drafted=gamma if found else 0, accepted=accepted)


def test_marks_are_as_high_as_gamma_and_coloured_by_what_stood() -> None:
    steps = [step(0), step(1, 0), step(4, 2), step(8, 8), step(8, found=False)]
    marks = gamma_marks(steps, top=8, ascii_only=False)
    assert marks.plain == "·▁▄██"
    assert [span.style for span in marks.spans] == ["dim", "red", "yellow", "green", "dim"]
    assert gamma_marks(steps, top=8, ascii_only=True).plain == ".1488"


def test_a_long_run_is_wrapped_without_losing_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_timeline(Console(width=40), {"task": [step(2)] * 100}, {"because": 100})
    out = capsys.readouterr().out
    assert out.count("█") == 100
    assert out.count("  kept") == 4, "without colours a second row says what stood"
    assert "because 100" in out


def test_colours_replace_the_second_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_timeline(Console(width=40, force_terminal=True, color_system="standard"), {"task": [step(2, 2)]}, {})
    out = capsys.readouterr().out
    assert "kept" not in out.splitlines()[-1]
    assert "\x1b[32m█" in out


@pytest.mark.parametrize(("foreign", "policy"), [(0.5, "PASSIVE"), (0.05, None)])
def test_on_a_busy_machine_threads_sleep_while_they_wait(
    monkeypatch: pytest.MonkeyPatch, foreign: float, policy: str | None
) -> None:
    class Meter(benchmark.CpuMeter):
        def __exit__(self, *_: object) -> None:
            self.foreign = foreign

    environment: dict[str, str] = {}
    monkeypatch.setattr(benchmark, "CpuMeter", Meter)
    monkeypatch.setattr(command, "BUSY_CHECK_S", 0.0)
    monkeypatch.setattr(command, "BUSY", 0.2)
    monkeypatch.setattr(os, "environ", environment)
    assert command._yield_to_others() == (policy is not None)
    assert environment.get("OMP_WAIT_POLICY") == policy


def test_a_slow_machine_compares_shorter_answers() -> None:
    def answer(pass_s: float) -> Answer:
        return Answer(PromptItem("a", "text"), stamps=[pass_s * place for place in range(11)])

    assert command._affordable_tokens(answer(0.05), prompts=6) > 200
    assert 16 < command._affordable_tokens(answer(0.4), prompts=6) < 64
    assert command._affordable_tokens(answer(20.0), prompts=6) == command.FEWEST_TOKENS
