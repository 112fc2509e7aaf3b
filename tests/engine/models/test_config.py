from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.models.config import ModelConfig, RopeScaling

SMOLLM2 = ModelConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_len=8192,
)


def test_parameters_and_bytes() -> None:
    assert SMOLLM2.num_parameters() == 134_515_008
    assert SMOLLM2.weight_bytes(torch.float32) == 4 * 134_515_008
    assert SMOLLM2.weight_bytes(torch.bfloat16) == 2 * 134_515_008


def test_variants_add_their_parameters() -> None:
    plain = SMOLLM2.num_parameters()
    assert replace(SMOLLM2, tie_embeddings=False).num_parameters() - plain == 49152 * 576
    assert replace(SMOLLM2, qkv_bias=True).num_parameters() - plain == 30 * (576 + 2 * 192)
    assert replace(SMOLLM2, out_bias=True).num_parameters() - plain == 30 * 576
    assert replace(SMOLLM2, qk_norm=True).num_parameters() - plain == 30 * 2 * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 is not valid"),
        ({"vocab_size": -1}, "vocab_size=-1 is not valid"),
        ({"norm_eps": float("nan")}, "norm_eps=nan is not valid"),
        ({"num_kv_heads": 2}, "num_heads=9 must be a multiple of num_kv_heads=2"),
        ({"head_dim": 63}, "head_dim=63 must be even"),
        ({"sliding_window": 0}, "sliding_window=0 must be at least 1"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMOLLM2, **change)  # type: ignore[arg-type]


def test_rotary_scaling_leaves_fast_rotations_and_slows_the_others() -> None:
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=100)
    turns = torch.tensor([8.0, 4.0, 2.5, 1.0, 0.5], dtype=torch.float64)  # within 100 tokens
    frequencies = turns * 2 * torch.pi / 100
    expected = torch.tensor([1, 1, 0.5 + 0.5 / 8, 1 / 8, 1 / 8], dtype=torch.float64)
    assert torch.allclose(scaling.stretch(frequencies) / frequencies, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.5, 1.0, 4.0, 32), "rope scaling factor=0.5 is not valid: it must be at least 1"),
        ((8.0, 4.0, 1.0, 32), "low_freq_factor=4.0 and high_freq_factor=1.0 are not valid"),
        ((8.0, 0.0, 4.0, 32), "low_freq_factor=0.0"),
        ((8.0, 1.0, 4.0, 0), "original_context_len=0 must be above 0"),
    ],
)
def test_impossible_scalings_are_refused(settings: tuple[float, float, float, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeScaling(*settings)
