"""How an engine is set up: sizes that fix every buffer's shape, device, dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "float16": torch.float16}
TEST_BACKENDS = ("replay", "late")
BACKENDS = ("eager", "cuda", *TEST_BACKENDS)


class SettingError(ValueError):
    """Whoever asked for an engine has to ask for something else. The message names each setting as `name=value`."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and devices. `context_len` is the tokens a row can hold, prompt and answer together.

    `max_gamma` is what drafters are built for; the engine itself goes by its drafter. With `max_tree_nodes` a policy
    may have trees of up to so many draft tokens per row verified, if the drafter fills trees; buffers grow with it.
    `prefill_chunk` bounds the prompt tokens worked on between two decode steps. With `prefix_reuse`, what a prompt
    shares with the content of a row is not computed again. `backend` runs the captured pieces: `eager` anywhere, `cuda`
    as CUDA graphs; on a CPU also `replay` (recorded and replayed) and `late` (as late as is legal), which are for tests
    and debugging.
    """

    max_batch: int = 8
    context_len: int = 2048
    max_gamma: int = 16
    prefill_chunk: int = 256
    prefix_reuse: bool = True
    dtype: str = "float32"
    device: str = "cpu"
    backend: str = "eager"
    max_tree_nodes: int = 0

    def __post_init__(self) -> None:
        on_gpu = self.device.startswith("cuda")
        checks = (
            (self.max_batch >= 1, "max_batch", "at least 1"),
            (self.context_len >= 2, "context_len", "at least 2"),
            (0 <= self.max_gamma <= 64, "max_gamma", "from 0 to 64"),
            (0 <= self.max_tree_nodes <= 256, "max_tree_nodes", "from 0 (no trees) to 256"),
            (self.prefill_chunk >= 1, "prefill_chunk", "at least 1"),
            (self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}"),
            (not on_gpu or torch.cuda.is_available(), "device", "cpu: torch finds no CUDA device here"),
            (self.backend in BACKENDS, "backend", f"one of {', '.join(BACKENDS)}"),
            (self.backend != "cuda" or on_gpu, "backend", "eager unless device is cuda"),
            (self.backend not in TEST_BACKENDS or not on_gpu, "backend", "eager or cuda on a GPU"),
        )
        for valid, name, expected in checks:
            if not valid:
                raise SettingError(f"{name}={getattr(self, name)!r} is not valid: it must be {expected}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


def doubling_buckets(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `largest` itself: the batch widths that get their own bundle."""
    powers = [1 << bit for bit in range(largest.bit_length()) if 1 << bit < largest]
    return (*powers, largest)


def context_buckets(capacity: int, *, coarse: bool = False) -> tuple[int, ...]:
    """64, 96, 128, 192, ... up to `capacity`: attention reads the bucket, so each step wastes a third at most.

    `coarse` is for bundles that cost time and memory to make: 256, 1024, 4096, ...
    """
    if coarse:
        return (*[size for size in (256 << 2 * step for step in range(16)) if size < capacity], capacity)
    ladder = [size for bit in range(6, capacity.bit_length()) for size in (1 << bit, 3 << (bit - 1))]
    return (*[size for size in ladder if size < capacity], capacity)


def token_buckets(largest: int) -> tuple[int, ...]:
    """Packed-token widths: every one to 16, then multiples of 4, 8 and 16, so that padding stays a few per cent."""
    ladder = [*range(1, 17), *range(20, 65, 4), *range(72, 129, 8), *range(144, largest + 1, 16)]
    return (*[size for size in ladder if size < largest], largest)
