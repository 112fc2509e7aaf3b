"""Size is a budget: what outgrows it holds more than one idea and is split."""

from __future__ import annotations

import ast

from tests.rules.project import FOLDERS, parse, python_files, shown

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_no_file_is_longer_than_the_budget() -> None:
    sizes = {shown(path): path.read_text(encoding="utf-8").count("\n") for path in python_files()}
    assert sizes, "no Python files found: the rule looks in the wrong place"
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_the_budget() -> None:
    long = {}
    for path in python_files(*(folder for folder in FOLDERS if folder != "tests")):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{shown(path, node.lineno)} {node.name}"] = lines
    assert long == {}
