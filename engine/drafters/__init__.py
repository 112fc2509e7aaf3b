"""Where draft tokens come from."""

from engine.drafters.base import (
    AheadDrafter,
    CatchUpKey,
    Drafter,
    DraftKey,
    GrowKey,
    KeepsPrefixes,
    StepDrafter,
    TreeDrafter,
    features_of,
)
from engine.drafters.heads import HeadDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter

__all__ = [
    "AheadDrafter",
    "CatchUpKey",
    "DraftKey",
    "Drafter",
    "GrowKey",
    "HeadDrafter",
    "KeepsPrefixes",
    "MedusaDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "StepDrafter",
    "TreeDrafter",
    "features_of",
]
