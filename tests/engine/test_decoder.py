"""The decoder and its cache against a textbook forward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaptive.requests import Request, Sampling
from engine.attention import ChunkAttention, causal_mask
from engine.kv import KVCache
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from tests.engine.tiny import (
    TINY,
    Cycling,
    random_weights,
    reference_greedy,
    reference_logits,
    run_all,
    tiny_engine,
    tokens_of,
)

VARIANTS = {
    "llama": TINY,
    "untied": replace(TINY, tie_embeddings=False),
    "qwen2": replace(TINY, qkv_bias=True),
    "qwen3": replace(TINY, qk_norm=True, head_dim=6),
    "mistral": replace(TINY, sliding_window=7, tie_embeddings=False),
    "multi-head": replace(TINY, num_kv_heads=4),
    "multi-query": replace(TINY, num_kv_heads=1),
}
PROMPTS = [[1], [3, 4], [7, 0, 2, 7, 0, 2, 7], list(range(11)) * 3, [5, 5, 5, 5, 5, 5, 5, 5, 5]]


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_the_reference(config: ModelConfig) -> None:
    weights = random_weights(config)
    tokens = [7, 0, 2, 7, 0, 2, 1, 9, 10, 4, 4, 3, 8]
    decoder = Decoder(config, weights, 32, "cpu")
    kv = KVCache.allocate(config, rows=1, capacity=32, dtype=torch.float64, device="cpu")
    position_T = torch.arange(len(tokens))
    groups = config.num_heads // config.num_kv_heads
    mask = causal_mask(position_T.unsqueeze(0), 32, config.sliding_window, groups, torch.float64)
    attention = ChunkAttention(kv, position_T, torch.arange(32), mask)
    logits = decoder.logits(decoder.forward(torch.tensor(tokens), position_T, attention))
    assert torch.allclose(logits, reference_logits(config, weights, tokens), atol=1e-10)


@pytest.mark.parametrize("gammas", [(0,), (1,), (5,), (0, 3, 5, 1, 0, 0, 2)], ids=str)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_engine_decodes_what_full_recomputation_gives(config: ModelConfig, gammas: tuple[int, ...]) -> None:
    weights = random_weights(config)
    engine = tiny_engine(config)
    engine.attach(Cycling(gammas))
    requests = [Request(prompt, Sampling(max_tokens=20), id=str(place)) for place, prompt in enumerate(PROMPTS)]
    outputs = run_all(engine, requests, per_step=1)
    for place, prompt in enumerate(PROMPTS):
        assert tokens_of(outputs[str(place)]) == reference_greedy(config, weights, prompt, 20)
