"""What is measured: a real model, or one of a real model's shape with random weights."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.huggingface import tensor_shapes
from engine.models.source import Progress, open_model

SHAPES = {
    "tiny": ModelConfig(256, 32, 64, 2, 4, 2, 8, 512),
    "smollm2-135m": ModelConfig(49152, 576, 1536, 30, 9, 3, 64, 8192),
    "llama-3.2-1b": ModelConfig(128256, 2048, 8192, 16, 32, 8, 64, 131072),
    "llama-3.1-8b": ModelConfig(128256, 4096, 14336, 32, 32, 8, 128, 131072, tie_embeddings=False),
}


def real_decoder(model: str, context_len: int, dtype: torch.dtype, device: str, progress: Progress) -> Decoder:
    """ValueError when there is no such model or `context_len` is above its own."""
    source = open_model(model)
    _require_context(source.config, context_len)
    checkpoint = source.load(dtype, progress)
    return Decoder(checkpoint.config, checkpoint.weights, context_len, device)


def random_decoder(shape: str, context_len: int, dtype: torch.dtype, device: str) -> Decoder:
    """Made on the device; ValueError for a shape that is not known or too short."""
    if shape not in SHAPES:
        raise ValueError(f"shape {shape!r} is not known: choose from {', '.join(SHAPES)}")
    config = SHAPES[shape]
    _require_context(config, context_len)
    generator = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, size in tensor_shapes(config).items():
        weights[name] = torch.empty(size, dtype=dtype, device=device).normal_(std=0.02, generator=generator)
        if name.endswith("norm.weight"):
            weights[name].fill_(1)
    return Decoder(config, weights, context_len, device)


def _require_context(config: ModelConfig, context_len: int) -> None:
    if context_len > config.context_len:
        raise ValueError(f"a context of {context_len} is above the model's own limit of {config.context_len} tokens")
