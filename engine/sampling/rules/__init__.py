"""Acceptance rules that are not exact, one file each."""

from collections.abc import Mapping

from adaptive.contract import AcceptanceKind
from engine.sampling.rules.base import Case, Rule
from engine.sampling.rules.cactus import Cactus
from engine.sampling.rules.divergence import Divergence
from engine.sampling.rules.fly import Fly
from engine.sampling.rules.js import POINTS, JensenShannon
from engine.sampling.rules.mentored import Mentored
from engine.sampling.rules.threshold import Threshold
from engine.sampling.rules.typical import Typical

_ALL: tuple[Rule, ...] = (Typical(), Threshold(), JensenShannon(), Divergence(), Mentored(), Cactus(), Fly())
RULES: Mapping[AcceptanceKind, Rule] = {rule.kind: rule for rule in _ALL}

__all__ = [
    "POINTS",
    "RULES",
    "Cactus",
    "Case",
    "Divergence",
    "Fly",
    "JensenShannon",
    "Mentored",
    "Rule",
    "Threshold",
    "Typical",
]
