"""Seconds of one call, on a CPU or a GPU, and what many of them add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np
import torch


def seconds(call: Callable[[], object], device: str) -> float:
    """Wall time on a CPU; on a GPU the time between two events around what the call launches."""
    if not device.startswith("cuda"):
        start = perf_counter()
        call()
        return perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)  # what was queued for this call, such as writes to its buffers, is not its cost
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 10th to 90th percentile of repeated measurements."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, middle, high = np.percentile(values, [10, 50, 90])
        return cls(float(middle), float(low), float(high))

    def scaled(self, factor: float) -> Spread:
        return Spread(factor * self.median, factor * self.p10, factor * self.p90)

    def as_json(self, digits: int = 4) -> dict[str, float]:
        return {name: round(value, digits) for name, value in asdict(self).items()}
