"""Every relative link in the documentation leads somewhere, down to the heading it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rules.project import ROOT, shown

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:")


def _prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    """Ids as a Markdown host makes them: lower case, no punctuation, dashes for spaces, repeats numbered."""
    anchors: set[str] = set()
    for heading in HEADING.findall(_prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeats = sum(1 for known in anchors if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", known))
        anchors.add(f"{slug}-{repeats}" if repeats else slug)
    return anchors


def _broken(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(CODE.sub("", _prose(page))):
        if EXTERNAL.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_relative_links_resolve(page: Path) -> None:
    assert _broken(page) == []


def test_every_page_is_reached_from_the_index() -> None:
    docs = ROOT / "docs"
    linked = {(docs / target.partition("#")[0]).resolve() for target in LINK.findall(_prose(docs / "index.md"))}
    assert [shown(page) for page in docs.rglob("*.md") if page.name != "index.md" and page not in linked] == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[good](#one-two) [bad](#three) [gone](gone.md) `[code](no.md)`\n", encoding="utf-8")
    assert _broken(page) == ["#three", "gone.md"]
