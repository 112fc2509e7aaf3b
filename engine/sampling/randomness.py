"""Random numbers without a generator: a hash of who asks, so that a captured step stays a pure function.

The key is (seed, the request's own step count, position, stream). Position alone would reuse a number after a
rejection, which biases block verification.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Streams: is the draft token accepted, which token is chosen instead, which token is drafted, is it accepted by order
# (synthetic acceptance).
ACCEPT, CHOOSE, DRAFT, SYNTHETIC = range(4)
STREAMS = 4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of a signed 64-bit integer."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014); products wrap modulo 2^64."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seeds: Tensor, steps: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Uniforms strictly inside (0, 1) as float64, one per element of the broadcast int64 inputs."""
    key = seeds
    for part in (steps, STREAMS * positions + stream):
        key = _mix(_mix(key) + (part + 1) * _GOLDEN)
    return _open_unit(key)


def _open_unit(bits: Tensor) -> Tensor:
    """The upper 52 bits as the middle of one of 2^52 cells of (0, 1): exact in float64, so that none rounds to 1."""
    return _shift_right(bits, 12).to(torch.float64) * 2.0**-52 + 2.0**-53
