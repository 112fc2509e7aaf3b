"""Drafters that come with the package."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "drafters"


def shipped_drafter(target: str, method: str) -> Path | None:
    """The folder of the package's own drafter for a target by its known name, where there is one."""
    folder = FOLDER / f"{target}-{method}"
    return folder if (folder / "config.json").is_file() else None
