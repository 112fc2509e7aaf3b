from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models import source
from engine.models.source import open_model
from tests.engine.gguf_files import TinyGguf
from tests.engine.models.hf_folders import write_folder


def test_files_folders_and_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "folder", "smollm")
    file = TinyGguf().write(tmp_path / "tiny.gguf")
    asked: list[tuple[str, str | None]] = []

    def fetched(repo: str, revision: str | None) -> Path:
        asked.append((repo, revision))
        return folder

    monkeypatch.setattr(source, "fetch_snapshot", fetched)
    for model in (folder, str(folder), file):
        opened = open_model(model)
        checkpoint = opened.load(torch.bfloat16)
        assert checkpoint.config == opened.config
        assert checkpoint.name == str(model)
        assert {weight.dtype for weight in checkpoint.weights.values()} == {torch.bfloat16}
    assert asked == []
    assert open_model("org/tiny", "v2").load().name == "org/tiny"
    assert asked == [("org/tiny", "v2")]


def test_a_folder_of_that_name_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "org" / "tiny", "smollm")
    monkeypatch.chdir(tmp_path)
    assert open_model("org/tiny").config.num_heads == 3


@pytest.mark.parametrize("name", ["nowhere", "./org/tiny", "org/tiny.gguf", "a/b/c"])
def test_what_is_neither_here_nor_a_hub_id(name: str) -> None:
    with pytest.raises(ValueError, match=r"no model file at .*; a model of the Hugging Face hub has the form org"):
        open_model(name)


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match="revision='main' is for hub models only"):
        open_model(file, "main")
