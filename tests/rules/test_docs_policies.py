"""Every policy and every acceptance rule has a page or a section that says what it does, whence, and when it loses."""

from __future__ import annotations

import re

import pytest

from adaptive.contract import AcceptanceKind
from adaptive.registry import ALLOW_LIST, list_policies
from tests.rules.project import ROOT

PAGES = {
    "fixed": "fixed",
    "fixed-tree": "fixed_tree",
    "schedule": "schedule",
    "ema": "ema",
    "ema-sglang": "ema",
    "adaspec": "adaspec",
    "adasd": "adasd",
}


def test_every_policy_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_LIST, "")
    assert set(PAGES) == {entry.name for entry in list_policies()}
    overview = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    for name, page in PAGES.items():
        text = (ROOT / f"docs/policies/{page}.md").read_text(encoding="utf-8")
        said = re.findall(r"\*\*(Rule|Source|Wins|Loses)\b", text)
        assert sorted(said) == ["Loses", "Rule", "Source", "Wins"], page
        assert re.search(rf"`{name}[:`]", text), f"{page}: how {name} is written on the command line"
        assert f"(policies/{page}.md)" in overview


@pytest.mark.parametrize("kind", AcceptanceKind)
def test_every_acceptance_rule_has_a_section(kind: AcceptanceKind) -> None:
    sections = (ROOT / "docs/acceptance.md").read_text(encoding="utf-8").split("\n### ")[1:]
    (section,) = [text for text in sections if text.startswith(f"{kind}\n")]
    assert sorted(re.findall(r"\*\*(Source|Wins|Loses)\b", section)) == ["Loses", "Source", "Wins"]
