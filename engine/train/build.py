"""Fresh drafters by method, sized after their target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.models.config import ModelConfig
from engine.train.draft_model import DraftModel
from engine.train.drafter import TrainableDrafter
from engine.train.eagle1 import Eagle1
from engine.train.eagle3 import Eagle3
from engine.train.medusa import Medusa
from engine.train.medusa2 import Medusa2
from engine.train.mtp import Mtp

METHODS = ("eagle1", "eagle3", "medusa", "mtp", "draft")
RATE_SHARES = {"draft": 0.7}  # it begins as parts of the target, which large steps would only undo


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many steps EAGLE-3 and MTP are unrolled through, how many heads and layers the others have.

    `joint` tunes the target's layers with Medusa's heads.
    """

    eagle_depth: int = 5
    mtp_depth: int = 4
    medusa_heads: int = 4
    medusa_layers: int = 2
    draft_layers: int = 2
    joint: bool = False


def build_drafter(
    method: str, config: ModelConfig, weights: Mapping[str, Tensor], length: int, sizes: Sizes | None = None
) -> TrainableDrafter:
    """One for sequences of up to `length` tokens. ValueError for a method that is not known."""
    sizes = sizes or Sizes()
    if method == "eagle3":
        return Eagle3(config, length, sizes.eagle_depth)
    if method == "eagle1":
        return Eagle1(config, length)
    if method == "medusa" and sizes.joint:
        return Medusa2(config, weights, length, sizes.medusa_heads, sizes.medusa_layers)
    if method == "medusa":
        return Medusa(config, sizes.medusa_heads, sizes.medusa_layers)
    if method == "mtp":
        return Mtp(config, length, sizes.mtp_depth)
    if method == "draft":
        drafter = DraftModel(config, length, sizes.draft_layers)
        drafter.copy_layers(weights, spread(config.num_layers, sizes.draft_layers))
        return drafter
    raise ValueError(f"method {method!r} is unknown: choose from {', '.join(METHODS)}")


def spread(layers: int, count: int) -> list[int]:
    """`count` layer numbers from first to last, evenly.

    >>> spread(30, 2), spread(30, 3), spread(30, 1)
    ([0, 29], [0, 14, 29], [0])
    """
    return [0] if count == 1 else [place * (layers - 1) // (count - 1) for place in range(count)]
