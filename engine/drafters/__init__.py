"""Where draft tokens come from."""

from engine.drafters.base import AheadDrafter, CatchUpKey, Drafter, DraftKey, GrowKey, StepDrafter, TreeDrafter
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter

__all__ = [
    "AheadDrafter",
    "CatchUpKey",
    "DraftKey",
    "Drafter",
    "GrowKey",
    "ModelDrafter",
    "NgramDrafter",
    "StepDrafter",
    "TreeDrafter",
]
