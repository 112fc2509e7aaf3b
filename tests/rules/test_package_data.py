"""What an installed package needs besides Python files travels with it."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from engine.drafters.shipped import ROOT as DRAFTERS
from tests.rules.project import ROOT

FILES = ("config.json", "model.safetensors", "README.md", "training.png")


def test_the_wheel_takes_whole_folders() -> None:
    """Hatchling puts every file of these folders into the wheel that git does not ignore."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert settings["wheel"] == {"packages": ["adaptive", "engine", "policies"]}
    assert "/engine" in settings["sdist"]["include"]
    assert DRAFTERS.is_relative_to(ROOT / "engine")


@pytest.mark.parametrize("name", FILES)
def test_git_ignores_nothing_of_a_drafter(name: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    path: Path = DRAFTERS / "smollm2-135m-eagle3" / name
    done = subprocess.run(["git", "check-ignore", "-v", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
