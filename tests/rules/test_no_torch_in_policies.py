"""The control plane runs where torch is not installed: inside another engine's process, in CI, on a laptop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rules.project import ROOT, imported_modules, parse, python_files, shown

ALLOWED = {"numpy", "scipy", "policies"}
ALLOWED_FROM_ADAPTIVE = {"adaptive.contract", "adaptive.requests"}

WITHOUT_TORCH = """
import importlib, sys
from importlib.abc import MetaPathFinder

class NoTorch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "engine"}:
            raise ModuleNotFoundError(f"{name} is blocked by this test", name=name)
        return None

sys.meta_path.insert(0, NoTorch())
module = importlib.import_module(sys.argv[1])
for name in getattr(module, "__all__", ()):
    getattr(module, name)
"""


def test_policies_import_only_numpy_scipy_and_the_contract() -> None:
    foreign = [
        f"{shown(path, line)} {module}"
        for path in python_files("policies")
        for line, module in imported_modules(parse(path))
        if module not in ALLOWED_FROM_ADAPTIVE
        and module.split(".")[0] not in ALLOWED
        and module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


@pytest.mark.parametrize(
    "module",
    [
        "adaptive",
        "policies",
        "adaptive.benchmark",
        "adaptive.check",
        "adaptive.cli",
        "adaptive.controller",
        "adaptive.registry",
    ],
)
def test_imports_without_torch(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, module], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
