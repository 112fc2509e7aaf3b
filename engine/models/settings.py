"""A JSON file of settings, read with types, and errors that name the file and the key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The object in one JSON file, or in a part of it; null counts as absent. `where` names it in messages."""

    where: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Settings:
        """ValueError when the file is missing or does not hold a JSON object."""
        if not path.is_file():
            raise ValueError(f"{path.parent} has no {path.name}: the folder is not a complete Hugging Face model")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not valid JSON ({error}): get it again") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} is not a JSON object: it holds {type(values).__name__}")
        return cls(str(path), values)

    @classmethod
    def read_optional(cls, path: Path) -> Settings:
        """As `read`, and empty when there is no such file."""
        return cls.read(path) if path.exists() else cls(str(path), {})

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty when absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts")
        return value

    def integers(self, key: str) -> list[int]:
        """A whole number or a list of them; empty when absent."""
        value = self.values.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self._wrong(key, "a whole number or a list of them")
        return items

    def section(self, key: str) -> Settings:
        """The object under `key`; empty when absent."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Settings(f"{self.where}: {key}", value)

    def _required(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        found = default if value is None else value
        if found is None:
            raise ValueError(f"{self.where} has no {key!r}")
        return found

    def _wrong(self, key: str, expected: str) -> ValueError:
        return ValueError(f"{self.where}: {key}={self.values.get(key)!r} is not valid: it must be {expected}")
