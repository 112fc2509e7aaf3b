"""A tuned model as a Hugging Face folder: weights, config.json, tokenizer and chat template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from engine.models.checkpoint import Checkpoint
from engine.models.export import export_huggingface
from engine.train.medusa2 import Backbone


def save_backbone(folder: Path, backbone: Backbone, original: Checkpoint, dtype: torch.dtype = torch.float16) -> None:
    """Everything that is needed to load it as a target; what was not tuned is the original's."""
    weights = original.weights | {f"model.{name}": tensor for name, tensor in backbone.state_dict().items()}
    tensors = {name: tensor.detach().to(dtype).cpu() for name, tensor in weights.items()}
    export_huggingface(replace(original, weights=tensors), folder)
