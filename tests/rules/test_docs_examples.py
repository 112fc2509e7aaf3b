"""Code on a page is code: it compiles, and the policy that the documentation teaches keeps the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive.check import check_policy
from tests.rules.project import ROOT, shown

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _blocks(page: Path) -> Iterator[str]:
    yield from PYTHON_BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(_blocks(page))], ids=shown)
def test_code_compiles(page: Path) -> None:
    for block in _blocks(page):
        try:
            compile(block, shown(page), "exec")
        except SyntaxError as error:
            pytest.fail(f"{error}\n{block}")


def test_the_policy_of_the_policies_page_keeps_the_contract() -> None:
    (block,) = _blocks(ROOT / "docs/policies.md")
    names: dict[str, Any] = {"__name__": "docs.policies"}
    exec(compile(block, "docs/policies.md", "exec"), names)
    assert check_policy(names["HalfWhenBusy"](8))
