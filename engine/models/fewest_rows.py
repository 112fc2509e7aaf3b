"""How many rows a product with a few of them is filled up to on this processor.

oneDNN takes longer for one to four rows than for five or six on some processors (by a sixth on a Zen 4 with AVX-512)
and not on others. So it is measured, once, on matrices of one usual size. Plain decoding, a few draft tokens and the
last rows of a batch then go through one kernel, which also rounds all of them alike.

Shapes: N rows, I and O what a matrix takes and makes.
"""

from __future__ import annotations

from functools import cache
from statistics import median
from time import perf_counter

import torch

MOST = 8
ROUNDS = 11
MATRICES, SIDE_O, SIDE_I = 12, 2048, 576  # 57 MB in float32: more than most caches hold
LEAST_GAIN, ALIKE = 0.03, 0.02


@cache
def fewest_rows(dtype: torch.dtype, threads: int) -> int:
    """The count of rows, at most `MOST`, that takes least time with this many `threads`, the smallest of those alike.

    1 where any other gains next to nothing.
    """
    return fewest([median(column) for column in zip(*_times(dtype), strict=True)])


def fewest(seconds: list[float]) -> int:
    """From the times for 1, 2, ... rows.

    >>> fewest([10.0, 11.0, 8.1, 8.0]), fewest([10.0, 11.0, 9.8]), fewest([10.0])
    (3, 1, 1)
    """
    least = min(seconds)
    if least > (1 - LEAST_GAIN) * seconds[0]:
        return 1
    return next(count for count, each in enumerate(seconds, 1) if each <= (1 + ALIKE) * least)


def _times(dtype: torch.dtype) -> list[list[float]]:
    """Seconds of all matrices in turn, by round and count of rows; the first round is thrown away."""
    random = torch.Generator("cpu").manual_seed(0)  # its own: whoever loads a model may have seeded the common one
    weight_OI = torch.rand((SIDE_O, SIDE_I), generator=random, device="cpu").to(dtype)
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight_OI) for _ in range(MATRICES)]
    inputs = [weight_OI[:count].clone() for count in range(1, MOST + 1)]
    rounds = []
    for _ in range(ROUNDS + 1):
        times = []
        for x_NI in inputs:
            started = perf_counter()
            for weight in packed:
                torch.ops.mkldnn._linear_pointwise(x_NI, weight, None, "none", [], "")
            times.append(perf_counter() - started)
        rounds.append(times)
    return rounds[1:]
