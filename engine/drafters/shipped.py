"""Trained drafters that come with the package, by the known name of the model that they draft for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.models.fetch import KNOWN_MODELS

ROOT = Path(__file__).parents[1] / "data" / "drafters"
METHODS = {"eagle1": "eagle1", "eagle3": "eagle3", "medusa": "medusa", "mtp": "mtp", "model": "draft"}
"""What `adaptive train` makes, by the name of the drafter that loads it."""


@dataclass(frozen=True, slots=True)
class ShippedDrafter:
    """A folder as `adaptive train` writes it. `drafter` is the name that loads it, `method` the one that trained it."""

    target: str
    drafter: str
    method: str
    folder: Path

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def shipped_drafters(target: str) -> Iterator[ShippedDrafter]:
    """The package's own drafters for a model by its known name, those that are there."""
    if target not in KNOWN_MODELS:  # a path might lead out of our folder
        return
    for drafter, method in METHODS.items():
        folder = ROOT / f"{target}-{method}"
        if (folder / "config.json").is_file():
            yield ShippedDrafter(target, drafter, method, folder)


def shipped_drafter(target: str, name: str) -> Path | None:
    """The folder of one of them, by the drafter's name or the method's."""
    return next((one.folder for one in shipped_drafters(target) if name in (one.drafter, one.method)), None)
