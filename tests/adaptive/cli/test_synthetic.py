"""`--synthetic-acceptance-*`: checked at once, passed on, and marked in all that is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive.cli.options import EngineOptions
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import ToyEngine
from tests.engine.gguf_files import TinyGguf

NOTICE = "synthetic acceptance: outputs are meaningless"
RATE, RATES, LENGTH = (f"--synthetic-acceptance-{name}" for name in ("rate", "rates", "length"))

USAGE_ERRORS = {
    "two": ([RATE, "0.5", LENGTH, "2"], [RATE, LENGTH, "exclude each other"]),
    "three": ([RATE, "0.5", RATES, "0.5", LENGTH, "2"], [RATES, "exclude each other"]),
    "rate": ([RATE, "1.5"], [f"{RATE}: rate=1.5", "0 to 1"]),
    "no number": ([RATE, "half"], [RATE, "valid number"]),
    "rates": ([RATES, "0.5,0.6"], [f"{RATES}: rates=[0.5, 0.6]", "none above the one before"]),
    "no numbers": ([RATES, "0.9;0.5"], [RATES, "'0.9;0.5' is not a list of numbers"]),
    "too many rates": ([RATES, ",".join(["0.5"] * 17)], [RATES, "17 rates for 16"]),
    "length": ([LENGTH, "0.5"], [f"{LENGTH}: length=0.5"]),
    "long": ([LENGTH, "17.5"], ["length=17.5 is out of reach"]),
    "no drafter": ([RATE, "0.5", "--drafter", "none"], [RATE, "needs a drafter"]),
}


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("bench",)], ids=["generate", "bench"])
@pytest.mark.parametrize(("args", "words"), USAGE_ERRORS.values(), ids=list(USAGE_ERRORS))
def test_usage_errors(cli: Cli, toy: ToyEngine, command: tuple[str, ...], args: list[str], words: list[str]) -> None:
    ended = cli(*command, *args)
    assert (ended.code, ended.out) == (2, "")
    assert [word for word in words if word not in ended.err] == []
    assert toy.prompts == []


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ((), None),
        ((RATE, 0.25), "rate 0.25"),
        ((RATES, "0.9, 0.5,0"), "rates 0.9, 0.5, 0"),
        ((LENGTH, 3), "length 3"),
    ],
)
def test_options_reach_the_engine(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...], asked: str | None
) -> None:
    seen: list[EngineOptions] = []

    def opened(options: EngineOptions) -> ToyEngine:
        seen.append(options)
        return ToyEngine()

    put_in_place(monkeypatch, opened)
    ended = cli("generate", "--prompt", "ab", *args)
    assert ended.code == 0, ended.err
    assert [str(options.synthetic) if options.synthetic else None for options in seen] == [asked]
    assert (f"{NOTICE} ({asked})" in ended.out) == (asked is not None)


def test_json_is_marked_line_by_line(cli: Cli, toy: ToyEngine, prompt_file: Path) -> None:
    ended = cli("generate", "--prompts", prompt_file, RATE, 0.5, "--json")
    assert [record["synthetic_acceptance"] for record in ended.lines()] == ["rate 0.5"] * 3
    assert NOTICE in ended.err
    unmarked = cli("generate", "--prompts", prompt_file, "--json")
    assert not any("synthetic_acceptance" in record for record in unmarked.lines())
    assert NOTICE not in unmarked.err


def test_bench_compares_no_tokens(cli: Cli, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, lambda options: ToyEngine(swaps_tokens=True))
    target = tmp_path / "result.json"
    ended = cli("bench", "--prompts", prompt_file, "--repeat", 1, LENGTH, 2, "--json", target)
    assert f"{NOTICE} (length 2)" in ended.out
    assert "Lossless check: does not apply to synthetic acceptance." in ended.out
    assert "differ from plain decoding" not in ended.out
    result = json.loads(target.read_text(encoding="utf-8"))
    assert result["settings"]["synthetic_acceptance"] == "length 2"
    assert [arm["mismatches"] for arm in result["arms"]] == [None] * 3


@pytest.mark.parametrize(("rate", "alpha", "steps"), [(0, 0.0, 24), (1, 1.0, 5)])
def test_the_bundled_engine_accepts_as_asked(cli: Cli, tmp_path: Path, rate: int, alpha: float, steps: int) -> None:
    model = TinyGguf().write(tmp_path / "tiny.gguf")
    args = ("--policy", "fixed:4", "--max-tokens", 24, "--ignore-eos", "--threads", 1, RATE, rate, "--json")
    (record,) = cli("generate", "--prompt", "x", "--model", model, *args).lines()
    assert (record["alpha"], record["steps"]) == (alpha, steps)
