"""`constraints.txt` makes two machines set up the same environment, from whatever registry each of them has."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.rules.project import ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)$")


def _lines() -> list[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _pins() -> dict[str, Version]:
    matches = [match for line in _lines() if (match := PIN.match(line))]
    return {canonicalize_name(match[1]): Version(match[2]) for match in matches}


def _requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def test_each_line_is_an_exact_version_and_nothing_else() -> None:
    """No registry, no file, no build label: a pin that only one machine can meet is none."""
    assert [line for line in _lines() if not PIN.match(line)] == []


def test_nothing_is_pinned_twice() -> None:
    assert len(_pins()) == len(_lines())


@pytest.mark.parametrize("requirement", _requirements(), ids=str)
def test_each_direct_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    pin = _pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is in pyproject.toml but not in constraints.txt"
    assert pin in requirement.specifier, f"{requirement} does not allow the pinned {pin}"
