"""What the house rules look at: the project's own files, wherever the tests were started from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("adaptive", "engine", "policies")
FOLDERS = (*PACKAGES, "tests", "bench", "examples")


def python_files(*folders: str) -> list[Path]:
    """Every Python file under the given top-level folders (default: all of ours), sorted."""
    return sorted(path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path, line: int | None = None) -> str:
    """`path` as a reader would type it from the project's root."""
    name = path.relative_to(ROOT).as_posix()
    return name if line is None else f"{name}:{line}"


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
