"""What runs here and on what, in words: measured times hold for the same words only."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

from adaptive.contract import Identity
from engine.config import EngineConfig
from engine.drafters import Drafter
from engine.models.config import ModelConfig


def identify(model: ModelConfig, config: EngineConfig, drafter: Drafter | None) -> Identity:
    """Machine (with the threads in use), and model with dtype, backend and drafter."""
    return Identity(_machine(config.device), _model(model, config, drafter))


def _machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{_cpu()}, {cores} cores, {torch.get_num_threads()} threads"


def _model(model: ModelConfig, config: EngineConfig, drafter: Drafter | None) -> str:
    size = f"{model.num_layers} layers of {model.hidden_size}, vocabulary {model.vocab_size}"
    millions = model.num_parameters() / 1e6
    drafting = f"{drafter.name} drafter" if drafter else "no drafter"
    return f"{millions:.1f}M parameters, {size}, {config.dtype}, {config.backend}, {drafting}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
