"""A model by whatever name the user gives: found, its shape read, its weights still in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.fetch import KNOWN_MODELS, resolve_model
from engine.models.gguf import load_gguf
from engine.models.gguf import read_config as read_gguf_config
from engine.models.gguf_file import GgufFile
from engine.models.hf_config import read_config
from engine.models.hub import fetch_snapshot, is_hub_id
from engine.models.huggingface import load_huggingface

Progress = Callable[[int, int], None]


class _Load(Protocol):
    def __call__(self, dtype: torch.dtype, progress: Progress | None) -> Checkpoint: ...


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What is known of a model before its weights are read. `name` is what the user called it."""

    name: str
    config: ModelConfig
    _load: _Load

    def load(self, dtype: torch.dtype = torch.float32, progress: Progress | None = None) -> Checkpoint:
        """Read the weights, cast to `dtype`; `progress(done, total)` is told bytes. ValueError for bad files."""
        return replace(self._load(dtype, progress), name=self.name)


def open_model(model: str | Path, revision: str | None = None) -> ModelSource:
    """A name that `adaptive models list` knows, a GGUF file, a Hugging Face folder, or a hub id `organisation/model`.

    `revision` is a hub model's branch, tag or commit. ValueError when there is no such model, a file of it is missing
    or damaged, or it is of a kind that is not supported; FetchError when the hub does not give it.
    """
    path = _locate(model, revision)
    name = str(model)
    if path.is_dir():
        return ModelSource(name, read_config(path), lambda dtype, progress: load_huggingface(path, dtype, progress))
    file = GgufFile(path)
    return ModelSource(name, read_gguf_config(file), lambda dtype, progress: load_gguf(file, dtype, progress))


def _locate(model: str | Path, revision: str | None) -> Path:
    name = str(model)
    if name not in KNOWN_MODELS and not Path(name).expanduser().exists() and is_hub_id(name):
        return fetch_snapshot(name, revision)
    path = resolve_model(model)
    if revision is not None:
        raise ValueError(f"revision={revision!r} is for hub models only, and {name!r} is on this machine: leave it out")
    return path
