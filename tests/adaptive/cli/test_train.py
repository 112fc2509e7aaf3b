from __future__ import annotations

from pathlib import Path

import pytest

from tests.adaptive.cli.conftest import Cli

USAGE_ERRORS = {
    "method": (["--method", "eagle9"], ["eagle9", "eagle3"]),
    "data": (["--data", "nowhere"], ["--data", "nowhere"]),
    "start": (["--from", "nowhere"], ["--from", "nowhere"]),
    "joint": (["--method", "mtp", "--joint"], ["--joint", "mtp"]),
    "minutes": (["--minutes", "0"], ["--minutes"]),
    "target": (["--target", "gpt-17", "--from", "none"], ["--target", "gpt-17"]),
    "device": (["--device", "cuda:7"], ["cuda:7"]),
}


@pytest.mark.parametrize(("args", "words"), USAGE_ERRORS.values(), ids=list(USAGE_ERRORS))
def test_usage_errors_end_with_2_and_name_the_value(
    cli: Cli, tmp_path: Path, args: list[str], words: list[str]
) -> None:
    ended = cli("train", "--out", tmp_path / "out", *args)
    assert ended.code == 2, ended.err
    assert [word for word in words if word not in ended.err] == []
    assert not (tmp_path / "out").exists()


def test_a_folder_with_a_drafter_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ended = cli("train", "--out", tmp_path)
    assert ended.code == 2
    assert "--resume" in ended.err


def test_a_drafter_from_a_folder_of_text(cli: Cli, tmp_path: Path) -> None:
    from tests.engine.models.hf_folders import write_folder

    target = write_folder(tmp_path / "target", "smollm")
    (tmp_path / "text.txt").write_text("Some words of my own, again and again. " * 60, encoding="utf-8")
    args = ["--target", target, "--data", tmp_path / "text.txt", "--minutes", "0.06", "--length", "32", "--json"]
    ended = cli("train", "--method", "medusa", "--out", tmp_path / "out", "--batch-tokens", 256, *args)
    assert ended.code == 0, ended.err
    (result,) = ended.lines()
    assert result["folder"] == str(tmp_path / "out")
    assert result["steps"] > 0
    assert result["after"]["all"]["tau"] >= result["before"]["all"]["tau"] >= 1
    assert "held-out acceptance" in ended.err
    assert "nan" not in ended.err, "before the first step there is no loss to show"
    again = cli("train", "--method", "medusa", "--out", tmp_path / "out", "--resume", *args[:-1])
    assert again.code == 0, again.err
    assert "α1" in again.out
