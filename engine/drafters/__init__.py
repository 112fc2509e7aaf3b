"""Where draft tokens come from."""

from engine.drafters.base import AheadDrafter, CatchUpKey, Drafter, DraftKey, StepDrafter
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter

__all__ = ["AheadDrafter", "CatchUpKey", "DraftKey", "Drafter", "ModelDrafter", "NgramDrafter", "StepDrafter"]
