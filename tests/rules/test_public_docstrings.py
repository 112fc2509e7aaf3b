"""Whoever writes a policy or an engine reads these files and nothing else, so every public name says what it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.rules.project import ROOT, parse, python_files, shown

DOCUMENTED = [ROOT / "adaptive/controller.py", *python_files("policies")]
MIN_WORDS = 2


def _public(tree: ast.Module) -> list[ast.ClassDef | ast.FunctionDef]:
    return [
        node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("path", [ROOT / "adaptive/contract.py", *DOCUMENTED], ids=shown)
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parse(path)), f"{shown(path)} has no docstring"


@pytest.mark.parametrize("path", [ROOT / "adaptive/contract.py", *DOCUMENTED], ids=shown)
def test_public_names_say_what_they_are(path: Path) -> None:
    bare = [
        f"{shown(path, node.lineno)} {node.name}"
        for node in _public(parse(path))
        if len((ast.get_docstring(node) or "").split()) < MIN_WORDS and not _explains_itself(node)
    ]
    assert bare == []


def _explains_itself(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """A frozen record of plain fields: their names are its documentation."""
    return isinstance(node, ast.ClassDef) and all(isinstance(item, ast.AnnAssign) for item in node.body)
