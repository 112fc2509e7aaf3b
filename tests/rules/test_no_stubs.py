"""What is in the tree works: no placeholders, no notes to self, no swallowed errors."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.rules.project import FOLDERS, PACKAGES, parse, python_files, shown

NOTE_TO_SELF = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BROAD = {"Exception", "BaseException"}


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _is_empty(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis)
        for node in body
    )


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in BROAD)


def test_no_placeholders() -> None:
    found = [
        shown(path, node.lineno)
        for path in python_files(*PACKAGES, "bench", "examples")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc)
    ]
    assert found == []


def test_no_notes_to_self() -> None:
    found = [
        shown(path, line) for path in python_files() for line, text in _comments(path) if NOTE_TO_SELF.search(text)
    ]
    assert found == []


def test_no_swallowed_errors() -> None:
    found = [
        shown(path, node.lineno)
        for path in python_files(*FOLDERS)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and _is_empty(node.body)
    ]
    assert found == []
