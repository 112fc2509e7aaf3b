"""From a trained drafter's folder to a drafter, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from engine.config import EngineConfig
from engine.drafters.base import StepDrafter
from engine.drafters.eagle1 import eagle1_drafter
from engine.drafters.eagle3 import eagle3_drafter
from engine.drafters.head_format import HeadFormat, Kind
from engine.drafters.medusa import medusa_drafter
from engine.drafters.mtp import mtp_drafter
from engine.drafters.small_model import small_model_drafter
from engine.drafters.vocabulary import Target

Maker = Callable[[HeadFormat, Mapping[str, Tensor], Target, EngineConfig], StepDrafter]
MAKERS: dict[Kind, Maker] = {
    "eagle1": eagle1_drafter,
    "eagle3": eagle3_drafter,
    "medusa": medusa_drafter,
    "mtp": mtp_drafter,
    "draft": small_model_drafter,
}


def make_trained(
    source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig
) -> StepDrafter:
    """A drafter around `weights`, which `source` describes, for one target. ValueError if it is for another model."""
    source.check(target.decoder.config)
    return MAKERS[source.kind](source, weights, target, config)
