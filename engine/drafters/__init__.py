"""Where draft tokens come from."""

from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter

__all__ = ["Drafter", "NgramDrafter"]
