"""What engines will take, said and checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil
import torch

from engine.footprint import footprint
from engine.plan import EnginePlan
from engine.sketch import sketch
from engine.step_memory import largest_step

GIB = 1 << 30
TARGET, ON_THEIR_WAY = "target weights", "weights on their way"


def free_bytes(device: str) -> int:
    """Memory that can be allocated now, on the host or the GPU."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose for each of several engines that share the target's weights.

    `engines` are in the plans' order; only the first counts the target's weights. `passing` is on the host while
    weights are read and repacked, and gone afterwards. `steps` is what the largest step of each takes while it runs, by
    batch size; engines that take turns take it in turns.
    """

    engines: tuple[Mapping[str, int], ...]
    passing: int
    steps: tuple[Mapping[int, int], ...]

    @property
    def total(self) -> int:
        """What stays."""
        return sum(size for engine in self.engines for size in engine.values())


def plan_memory(plans: Sequence[EnginePlan], batches: Sequence[int] = ()) -> MemoryPlan:
    """What these engines will take together, to the tensor; nothing is allocated for it.

    `batches` are those whose largest steps are looked at (tenths of a second each).
    """
    sketches = [sketch(plan) for plan in plans]
    engines = [footprint(engine) for engine in sketches]
    longest = max(engine[TARGET] for engine in engines)  # position tables included
    shared = [{**engine, TARGET: longest if place == 0 else 0} for place, engine in enumerate(engines)]
    kept = tuple({name: size for name, size in engine.items() if size} for engine in shared)
    steps = tuple({batch: largest_step(engine, batch) for batch in batches} for engine in sketches)
    return MemoryPlan(kept, plans[0].source.config.weight_bytes(plans[0].config.torch_dtype), steps)


def require_memory(plans: Sequence[EnginePlan]) -> None:
    """Raise MemoryError, with what was asked and what there is, unless everything fits."""
    config, needed = plans[0].config, plan_memory(plans)
    kept: dict[str, int] = {}
    for engine in needed.engines:
        for name, size in engine.items():
            kept[name] = kept.get(name, 0) + size
    passing = {ON_THEIR_WAY: needed.passing}
    if torch.device(config.device).type == "cpu":
        _require("cpu", kept | passing, plans)
    else:
        _require("cpu", passing, plans)
        _require(config.device, kept, plans)


def _require(device: str, needed: Mapping[str, int], plans: Sequence[EnginePlan]) -> None:
    total, free = sum(needed.values()), free_bytes(device)
    if total <= free:
        return
    config = plans[0].config
    parts = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in needed.items())
    raise MemoryError(
        f"{total / GIB:.2f} GiB is needed on {device} ({parts}) and {free / GIB:.2f} GiB is free: "
        f"lower max_batch={config.max_batch} or context_len={config.context_len}, or take a smaller dtype"
    )
