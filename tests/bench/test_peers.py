"""`make bench-peers`: the driver, and the worker around a library that is not the real one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from adaptive.benchmark import PeerError, started
from bench import openvino_model, peers
from bench.peers import Program, bench_command, find_programs, programs, usable
from tests.rules.project import ROOT

FAKE_LIBRARY = Path(__file__).parent / "fake_openvino"
WORKER = (sys.executable, str(ROOT / "bench" / "openvino_worker.py"), "folder")


@pytest.fixture
def fake_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_LIBRARY))


def console() -> Console:
    return Console(record=True, width=200)


# --- the worker -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fake_library")
def test_the_worker_pads_asks_and_cuts() -> None:
    """The fake library answers with the unpadded prompt, over and over, and prints to standard output meanwhile."""
    with started("openvino", WORKER) as process:
        assert process.facts["defaults"] == {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "u8"}
        assert process.facts["settings"] == {}
        decoded = process.decode([[5, 6, 7], [8]], 5, [6])
        assert decoded.tokens == [[5, 6], [8, 8, 8, 8, 8]]
        assert decoded.seconds > 0
        assert process.decode([[5, 6, 7]], 4, []).tokens == [[5, 6, 7, 5]]


@pytest.mark.usefixtures("fake_library")
def test_the_worker_passes_its_settings_on() -> None:
    options = ("--precision", "f32", "--lookup", "10", "--threads", "2")
    with started("openvino", (*WORKER, *options)) as process:
        assert process.facts["settings"] == {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": 2,
            "prompt_lookup": True,
        }
        assert process.decode([[5, 6]], 3, []).tokens == [[10, 3, 10]], "γ and the longest n-gram reach the library"


@pytest.mark.usefixtures("fake_library")
def test_the_worker_reports_what_the_library_raises() -> None:
    with (
        pytest.raises(PeerError, match="openvino reports: RuntimeError: no model in missing"),
        started("openvino", (*WORKER[:2], "missing")),
    ):
        pass
    with started("openvino", WORKER) as process, pytest.raises(PeerError, match="ValueError: empty prompt"):
        process.decode([[]], 3, [])


def test_the_worker_without_the_library() -> None:
    with (
        pytest.raises(PeerError, match="ModuleNotFoundError: No module named 'openvino'"),
        started("openvino", (WORKER[0], "-I", *WORKER[1:])),
    ):
        pass


# --- the driver -----------------------------------------------------------------------------------------------------


def test_lookup_takes_part_at_batch_1_only() -> None:
    found = programs(Path("python"), Path("a folder"), 2)
    assert [program.label for program in found if program.exact] == ["openvino-f32", "openvino-f32-lookup"]
    one, eight = bench_command(found, 1, ["--repeat", "3"]), bench_command(found, 8, [])
    assert one[one.index("--peers") + 1] == "transformers,transformers-lookup"
    assert eight[eight.index("--peers") + 1] == "transformers"
    assert one.count("--peer-program") == 4
    asked = [eight[place + 1] for place, word in enumerate(eight) if word == "--peer-program"]
    assert [text.partition("=")[0] for text in asked] == ["openvino-f32", "openvino-auto"]
    assert shlex.split(asked[0].partition("=")[2])[2] == "a folder"
    assert eight[eight.index("--max-batch") + 1] == "8"
    assert one[-2:] == ["--repeat", "3"]


def test_without_its_environment_the_rest_is_measured(tmp_path: Path) -> None:
    shown = console()
    assert find_programs(tmp_path, "smollm2-135m", 2, shown) == []
    assert "without OpenVINO GenAI:" in shown.export_text()
    assert bench_command([], 1, []).count("--peer-program") == 0


@pytest.mark.usefixtures("fake_library")
def test_programs_that_fail_their_trial_are_left_out_and_named() -> None:
    shown = console()
    good, bad = Program("good", WORKER, False, True), Program("bad", (*WORKER[:2], "missing"), False, True)
    assert usable([good, bad], shown) == [good]
    text = shown.export_text()
    assert "without bad: bad reports: RuntimeError: no model in missing" in text
    assert "good: ready in" in text


@pytest.mark.usefixtures("fake_library")
def test_the_librarys_own_settings_are_left_out_where_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Program("default", WORKER, lookup=False, exact=False)
    assert usable([own], console()) == [own]
    monkeypatch.setenv("FAKE_DEFAULT", "f32")
    shown = console()
    assert usable([own], shown) == []
    assert "its own settings are f32, too" in shown.export_text()


def test_a_failed_export_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(openvino_model, "export_huggingface", lambda checkpoint, folder: folder.mkdir())
    monkeypatch.setattr(openvino_model, "open_model", lambda model: _Source())
    exporter = tmp_path / "venv" / "bin" / "optimum-cli"
    exporter.parent.mkdir(parents=True)
    exporter.write_text("#!/bin/sh\necho 'unknown architecture' >&2\nexit 7\n", encoding="utf-8")
    exporter.chmod(0o755)
    with pytest.raises(openvino_model.OpenVinoMissingError, match=r"(?s)exit code 7.*unknown architecture"):
        openvino_model.openvino_folder("m", tmp_path / "venv", lambda text: None)
    assert [*(tmp_path / "cache" / "openvino").iterdir()] == []
    exporter.write_text('#!/bin/sh\nfor last; do :; done\nmkdir "$last"\ntouch "$last/openvino_model.xml"\n', "utf-8")
    folder = openvino_model.openvino_folder("m", tmp_path / "venv", lambda text: None)
    assert (folder / "openvino_model.xml").exists()
    exporter.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    assert openvino_model.openvino_folder("m", tmp_path / "venv", lambda text: None) == folder, "made once"


class _Source:
    def load(self, dtype: object) -> object:
        return dtype


@pytest.mark.real
def test_the_real_library_gives_our_tokens(smollm2_path: Path) -> None:
    venv = ROOT / ".venv-peers"
    if not (venv / ".ready").exists():
        pytest.skip(f"no OpenVINO GenAI: {venv} is not set up, `make bench-peers` does it")
    from engine.models.gguf import load_gguf

    checkpoint = load_gguf(smollm2_path)
    prompt = checkpoint.tokenizer.encode("The capital of France is")
    folder = openvino_model.openvino_folder(peers.MODEL, venv, lambda text: None)
    for program in programs(venv / "bin" / "python", folder, 1)[:2]:
        with started(program.label, program.command) as process:
            decoded = process.decode([prompt], 2, sorted(checkpoint.tokenizer.eos_ids))
        assert checkpoint.tokenizer.decode(decoded.tokens[0]).strip().startswith("Paris")
