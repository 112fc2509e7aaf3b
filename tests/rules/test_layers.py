"""Who may import whom: the contracts in pyproject.toml, and the two interface files by an allow-list."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rules.project import ROOT, imported_modules, parse, shown

INTERFACE = {
    "adaptive/contract.py": {"numpy", "numpy.typing", "adaptive.requests"},
    "adaptive/requests.py": set(),
}


def test_import_contracts_hold() -> None:
    # in a process of its own: the linter sets up logging, which switches off the loggers that other tests look at
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
