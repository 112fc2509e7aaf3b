from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from adaptive.cli.errors import CliError, describe
from adaptive.cli.options import EngineOptions
from adaptive.cli.session import check_installation
from tests.adaptive.cli.conftest import Cli, put_in_place
from tests.adaptive.cli.toy import CONTEXT, ToyEngine

USAGE_ERRORS = {
    "unknown policy": (["generate", "--prompt", "x", "--policy", "nonsense"], ["--policy", "nonsense", "ema"]),
    "bad policy argument": (["generate", "--prompt", "x", "--policy", "fixed:many"], ["fixed:many"]),
    "gamma not offered": (["generate", "--prompt", "x", "--policy", "fixed:99"], ["99", "offered"]),
    "policy in a list": (["bench", "--policies", "fixed:0,nonsense"], ["--policies", "nonsense"]),
    "policy twice": (["bench", "--policies", "ema,ema"], ["ema", "twice"]),
    "no policy": (["bench", "--policies", ","], ["at least one"]),
    "unknown drafter": (["generate", "--prompt", "x", "--drafter", "oracle"], ["oracle", "ngram"]),
    "draft model unused": (["bench", "--draft-model", "smollm2-135m"], ["--drafter ngram", "--draft-model"]),
    "unknown dtype": (["generate", "--prompt", "x", "--dtype", "int3"], ["int3", "float32"]),
    "unknown peer": (["bench", "--peers", "nobody"], ["nobody", "transformers"]),
    "peer with sampling": (["bench", "--peers", "transformers", "--temperature", "1"], ["greedily"]),
    "temperature": (["generate", "--prompt", "x", "--temperature", "-1"], ["--temperature -1"]),
    "top-p": (["generate", "--prompt", "x", "--top-p", "2"], ["--top-p 2"]),
    "max-tokens": (["bench", "--max-tokens", "0"], ["--max-tokens 0"]),
    "no prompt": (["generate"], ["--prompts", "--prompt"]),
    "file and text": (["generate", "--prompt", "x", "--prompts", "y"], ["either"]),
    "missing file": (["generate", "--prompts", "nowhere.jsonl"], ["nowhere.jsonl", "No such file"]),
    "missing file in bench": (["bench", "--prompts", "nowhere.jsonl"], ["nowhere.jsonl"]),
    "folder of the result": (["bench", "--json", "nowhere/result.json"], ["nowhere"]),
    "unknown model": (["models", "path", "gpt-17"], ["gpt-17", "smollm2-135m"]),
    "unknown option": (["generate", "--colour", "red"], ["--colour"]),
    "repeat": (["bench", "--repeat", "0"], ["--repeat"]),
}


@pytest.mark.parametrize(("args", "words"), USAGE_ERRORS.values(), ids=list(USAGE_ERRORS))
def test_usage_errors_end_with_2_and_name_the_value(
    cli: Cli, toy: ToyEngine, args: list[str], words: list[str]
) -> None:
    ended = cli(*args)
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert [word for word in words if word not in ended.err] == []
    assert toy.prompts == [], "nothing may run before the command line is known to be good"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "b", "prompt": ', "not valid JSON"),
        ("[1, 2]", "expected a JSON object"),
        ('{"prompt": "no id"}', "'id'"),
        ('{"id": "b"}', "'prompt'"),
        ('{"id": "b", "prompt": [{"role": "user"}]}', "'prompt'"),
        ('{"id": "b", "prompt": "x", "task": 7}', "'task'"),
        ('{"id": "a", "prompt": "again"}', "already used in line 1"),
    ],
)
def test_a_malformed_line_is_named(cli: Cli, toy: ToyEngine, tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "prompt": "fine"}\n\n' + line + "\n", encoding="utf-8")
    ended = cli("generate", "--prompts", path)
    assert (ended.code, ended.out) == (2, "")
    assert "bad.jsonl, line 3:" in ended.err
    assert words in ended.err


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_a_prompt_that_does_not_fit_is_named(cli: Cli, toy: ToyEngine, tmp_path: Path, command: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "1", "prompt": "%s"}' % ("x" * (CONTEXT + 1)), encoding="utf-8")
    ended = cli(command, "--prompts", path, "--raw")
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("adaptive: prompt '1': the prompt has 3001 tokens")
    assert "Traceback" not in ended.err


def test_debug_adds_the_traceback_and_keeps_the_exit_code(
    cli: Cli, toy: ToyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path))
    ended = cli("models", "path", "smollm2-135m", "--debug")
    assert ended.code == 1
    assert "Traceback" in ended.err
    usage = cli("generate", "--prompt", "x", "--policy", "nonsense", "--debug")
    assert usage.code == 2
    assert "Traceback" in usage.err


def test_a_missing_model_says_how_to_fetch_it(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path))
    ended = cli("generate", "--prompt", "x")
    assert ended.code == 1
    assert "adaptive models fetch smollm2-135m" in ended.err
    assert "Traceback" not in ended.err


def test_the_version_is_that_of_the_installed_distribution(cli: Cli) -> None:
    ended = cli("--version")
    assert (ended.code, ended.out) == (0, f"adaptive {version('adaptive-speculation')}\n")


def test_an_unexpected_error_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: EngineOptions) -> ToyEngine:
        raise KeyError("missing")

    put_in_place(monkeypatch, broken)
    ended = cli("generate", "--prompt", "x")
    assert ended.code == 1
    assert "KeyError: 'missing'" in ended.err
    assert "--debug" in ended.err


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "engine"), ("gguf.constants", "engine"), ("transformers", "peers")]
)
def test_a_missing_extra_says_what_to_install(module: str, extra: str) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert f"pip install 'adaptive-speculation[{extra}]'" in describe(error)


def test_without_the_engine_extra_only_what_needs_it_fails() -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'psutil', 'gguf', 'tokenizers', 'jinja2'): sys.modules[name] = None\n"
        "from adaptive.cli import main\n"
        "main(sys.argv[1:])"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, env=environment)

    assert "fixed:K" in run("policies").stdout
    ended = run("generate", "--prompt", "x")
    assert ended.returncode == 1
    assert "pip install 'adaptive-speculation[engine]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_foreign_package_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    check_installation(tmp_path)
    (tmp_path / "learner").mkdir()
    with pytest.raises(CliError, match=r"PyPI's 'adaptive' \(learner\).*pip uninstall adaptive"):
        check_installation(tmp_path)
