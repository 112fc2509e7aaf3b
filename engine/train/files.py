"""Trained drafters as folders: config.json and model.safetensors in float16, in the layouts other tools know.

No file holds the target's embedding or head: a drafter reads both from its target, through `d2t` and `t2d`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.export import rope_json
from engine.train.draft_vocab import DraftVocab
from engine.train.drafter import TrainableDrafter

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save_drafter(
    folder: Path,
    drafter: TrainableDrafter,
    config: ModelConfig,
    vocab: DraftVocab,
    target: str,
    dtype: torch.dtype = torch.float16,
) -> int:
    """Write the folder; the bytes of its weights. ValueError where a weight is too large for `dtype`."""
    tensors = {name: _cast(name, tensor, dtype) for name, tensor in drafter.tensors().items()}
    tensors |= {"d2t": vocab.d2t.contiguous(), "t2d": vocab.t2d.contiguous()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    settings = drafter_config(drafter, config, vocab, target)
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return (folder / WEIGHTS).stat().st_size


def drafter_config(drafter: TrainableDrafter, config: ModelConfig, vocab: DraftVocab, target: str) -> dict[str, Any]:
    """What config.json holds: the drafter's own settings after the target's sizes."""
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": vocab.size,
        "max_position_embeddings": config.context_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope_json(config),
    }
    return dict(drafter.settings()) | sizes | {"target": target}


def load_drafter(folder: Path, drafter: TrainableDrafter) -> DraftVocab:
    """Fill a drafter of the same shape from its folder; its draft vocabulary. ValueError where they do not fit."""
    tensors = read_tensors(folder)
    vocab = DraftVocab.of(torch.arange(len(tensors["d2t"])) + tensors.pop("d2t"), len(tensors.pop("t2d")))
    try:
        drafter.load_tensors({name: tensor.float() for name, tensor in tensors.items()})
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{folder} does not hold a drafter of this kind and shape: {error}") from error
    return vocab


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """ValueError where there is no readable file with a draft vocabulary."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a trained drafter")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} can not be read: it is truncated or damaged ({error})") from error
    if missing := {"d2t", "t2d"} - tensors.keys():
        raise ValueError(f"{path} has no {min(missing)}: it is not a drafter that this package trained")
    return tensors


def read_settings(folder: Path) -> Mapping[str, Any]:
    """config.json. ValueError where it is missing or no JSON object."""
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can not be read ({error}): give the folder of a trained drafter") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a JSON object: give the folder of a trained drafter")
    return settings


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    cast = tensor.detach().to(dtype).cpu().contiguous()
    if not cast.isfinite().all():
        raise ValueError(f"tensor {name!r} has values that {dtype} can not hold: training has gone wrong")
    return cast
