"""The tensors of a folder of safetensors files by name: opened lazily, read one at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.settings import Settings

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STORED_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
TABLE_BYTES = {"I64": 8, "I32": 4, "BOOL": 1, "U8": 1}  # no weights: lists and masks of tokens


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in its file, not read yet."""

    name: str
    path: Path
    shape: tuple[int, ...]
    stored_as: str
    _file: Any

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * (STORED_BYTES | TABLE_BYTES)[self.stored_as]

    @property
    def is_table(self) -> bool:
        return self.stored_as in TABLE_BYTES

    def read(self, dtype: torch.dtype) -> Tensor:
        """Weights in `dtype`, a table as it is; they share the file's pages where they are stored so."""
        tensor: Tensor = self._file.get_tensor(self.name)
        return tensor if self.is_table else tensor.to(dtype)


def open_tensors(folder: Path, *, tables: bool = False) -> dict[str, StoredTensor]:
    """Every tensor of model.safetensors, or of the files its index names; among them `tables`, if these are expected.

    ValueError names a file that is missing or damaged, and a tensor stored in a type that is not supported.
    """
    if (folder / SINGLE).is_file():
        return _open_file(folder / SINGLE, tables)
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}: weights are read from safetensors files only")
    places = _read_index(folder / INDEX)
    tensors: dict[str, StoredTensor] = {}
    for name in sorted(set(places.values())):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}, which {INDEX} names: get it again")
        tensors |= _open_file(folder / name, tables)
    strays = sorted(name for name in places if name not in tensors)
    if strays:
        raise ValueError(f"{folder / places[strays[0]]} has no tensor {strays[0]!r}, which {INDEX} places there")
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    places = Settings.read(path).section("weight_map")
    if not places.values:
        raise ValueError(f"{path} has no 'weight_map': get it again")
    return {name: places.text(name) for name in places.values}


def _open_file(path: Path, tables: bool) -> dict[str, StoredTensor]:
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} can not be read: it is truncated or damaged ({error}). Get it again") from error
    tensors = {}
    for name in file.keys():  # noqa: SIM118 - it is no mapping
        view = file.get_slice(name)
        stored_as = str(view.get_dtype())
        if stored_as not in STORED_BYTES and not (tables and stored_as in TABLE_BYTES):
            known = ", ".join(STORED_BYTES)
            raise ValueError(f"{path}: tensor {name!r} is stored as {stored_as}, which is not supported; use {known}")
        tensors[name] = StoredTensor(name, path, tuple(view.get_shape()), stored_as, file)
    return tensors
