"""Who may import whom: the contracts in pyproject.toml, and the two interface files by an allow-list."""

from __future__ import annotations

import sys

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.rules.project import ROOT, imported_modules, parse, shown

INTERFACE = {
    "adaptive/contract.py": {"numpy", "numpy.typing", "adaptive.requests"},
    "adaptive/requests.py": set(),
}


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the linter adds to it
    status = lint_imports(no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capfd.readouterr().out


@pytest.mark.parametrize("name", INTERFACE)
def test_interface_needs_only_numpy_and_the_standard_library(name: str) -> None:
    path = ROOT / name
    allowed = INTERFACE[name]
    foreign = [
        f"{shown(path, line)} {module}"
        for line, module in imported_modules(parse(path))
        if module not in allowed and module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []
