"""Code and prose that every Python has: its standard library's functions, docstrings and language reference."""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "turtledemo"}
CODE_SIZE = (120, 1000)  # characters of a function
PROSE_SIZE = (160, 900)  # characters of a paragraph
MODULES = 260  # read at most: parsing all takes seconds


@dataclass(frozen=True, slots=True)
class Function:
    """One function's source, dedented. `source` is its module; `doc` the first sentence of its docstring."""

    name: str
    code: str
    doc: str
    source: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences; `source` is where they stand."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Snippets:
    """What asks are made from. `words` are common plain words."""

    functions: list[Function]
    paragraphs: list[Paragraph]
    words: list[str]


def standard_library(seed: int, modules: int = MODULES) -> Snippets:
    """Functions and paragraphs of some modules, drawn by `seed`, and of the language reference."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if SKIPPED.isdisjoint(path.relative_to(root).parts))
    chosen = sorted(random.Random(seed).sample(paths, min(modules, len(paths))))
    functions: list[Function] = []
    paragraphs: list[Paragraph] = list(_reference())
    for path in chosen:
        found = _read_module(path, ".".join(path.relative_to(root).with_suffix("").parts))
        functions += found[0]
        paragraphs += found[1]
    return Snippets(functions, paragraphs, _common_words(paragraphs))


def _read_module(path: Path, name: str) -> tuple[list[Function], list[Paragraph]]:
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that newer Pythons warn of
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError):
        return [], []  # some modules are examples of broken or foreign source
    lines = text.splitlines()
    functions, paragraphs = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            doc = ast.get_docstring(node) or ""
            paragraphs += [Paragraph(part, name) for part in _paragraphs(doc)]
            if isinstance(node, ast.FunctionDef):
                code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if CODE_SIZE[0] <= len(code) <= CODE_SIZE[1] and code.startswith("def "):
                    functions.append(Function(node.name, code, _first_sentence(doc), name))
    return functions, paragraphs


def _reference() -> Iterator[Paragraph]:
    if find_spec("pydoc_data") is None:
        return  # some systems package it apart
    for topic, text in sorted(import_module("pydoc_data.topics").topics.items()):
        yield from (Paragraph(part, f"topics.{topic}") for part in _paragraphs(text))


def _paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", text):
        joined = " ".join(part.split())
        wordy = sum(character.isalpha() or character == " " for character in joined)
        if PROSE_SIZE[0] <= len(joined) <= PROSE_SIZE[1] and wordy > 0.85 * len(joined) and ". " in joined:
            yield joined


def _first_sentence(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def _common_words(paragraphs: list[Paragraph]) -> list[str]:
    counts: dict[str, int] = {}
    for paragraph in paragraphs:
        for word in re.findall(r"\b[a-z]{4,9}\b", paragraph.text):
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))[:1500]
