"""Reading a GGUF file: typed metadata, float32 tensors one at a time, and errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

MAGIC = b"GGUF"


class _PlainReader(GGUFReader):
    """The package's reader over a plain array: slicing `np.memmap` a million times takes four times as long."""

    @property  # type: ignore[override]  # where the package has a plain attribute
    def data(self) -> NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._data = mapped.view(np.ndarray)


class GgufFile:
    """An open (memory-mapped) GGUF file. ValueError when it is not one, or not all there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_magic(path)
        try:
            self._reader = _PlainReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            # The reader slices the mapped bytes and fails in many ways where they end too soon.
            raise ValueError(
                f"{path} is a GGUF file but can not be read: it is truncated or damaged ({error}). Get it again"
            ) from error
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}

    def _contents(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; a list (one value per layer) is accepted when all its values agree."""
        value = self._contents(key)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(f"{self.path}: {key} differs between layers ({value}), which is not supported")
            value = value[0]
        return int(self._required(key, value, default))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._required(key, self._contents(key), default))

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._required(key, self._contents(key), default))

    def texts(self, key: str) -> list[str]:
        return [str(value) for value in self._required(key, self._contents(key), None)]

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in self._required(key, self._contents(key), None)]

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._required(key, self._contents(key), default))

    def optional_integer(self, key: str) -> int | None:
        value = self._contents(key)
        return None if value is None else int(value)

    def optional_text(self, key: str) -> str | None:
        value = self._contents(key)
        return None if value is None else str(value)

    def _required(self, key: str, value: Any, default: Any) -> Any:
        found = default if value is None else value
        if found is None:
            raise ValueError(f"{self.path} has no {key!r}: the file is not a complete language model")
        return found

    def floats(self, name: str) -> NDArray[np.float32]:
        """Tensor `name` dequantised, `[out, in]` for matrices; may share the file's pages, so copy before keeping."""
        tensor = self.tensors[name]
        try:
            return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path}: tensor {name!r} is stored as {tensor.tensor_type.name}, which can not be dequantised"
            ) from error

    def tensor_bytes(self) -> Iterator[tuple[str, int]]:
        """Tensor names in file order, with their size in the file."""
        return ((name, int(tensor.n_bytes)) for name, tensor in self.tensors.items())


def _require_magic(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"no model file at {str(path)!r}")
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise ValueError(f"{path} is not a GGUF file: it starts with {start!r} instead of {MAGIC!r}")
