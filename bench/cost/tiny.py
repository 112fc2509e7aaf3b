"""A tiny engine with random weights: steps of a millisecond, to try the benchmark out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from adaptive.cli.options import MAX_GAMMA
from adaptive.contract import Engine
from bench.forward.models import random_decoder
from engine import EngineConfig, LLMEngine, SyntheticAcceptance
from engine.drafters import NgramDrafter

CONTEXT = 512


def tiny_engine(batch: int) -> tuple[Engine, Callable[[int], Sequence[int]]]:
    """With an n-gram drafter whose drafts are full and never accepted, and prompts of any length."""
    config = EngineConfig(max_batch=batch, context_len=CONTEXT, max_gamma=MAX_GAMMA)
    decoder = random_decoder("tiny", CONTEXT, torch.float32, "cpu")
    engine = LLMEngine(decoder, config, drafter=NgramDrafter(config), synthetic=SyntheticAcceptance(rate=0.0))
    return engine, lambda length: [place % 200 for place in range(length)]
