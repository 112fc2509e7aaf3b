"""What a user may give as a cost model: the model itself, a published one's name, a profile's file."""

from __future__ import annotations

from pathlib import Path

from adaptive.contract import CostModel
from policies.cost import StepCost
from policies.cost_published import PUBLISHED_COSTS, published_cost


def cost_model(source: CostModel | str | Path | None) -> CostModel | None:
    """The model it stands for; ValueError for a file that is no profile.

    >>> cost_model("llama-8b-h100-ngram").draft_s(1, 0, 10)
    0.0
    """
    if not isinstance(source, str | Path):
        return source
    return published_cost(str(source)) if str(source) in PUBLISHED_COSTS else StepCost.load(source)
