"""Policies: how deep to draft, decided once per step from host numbers. numpy, scipy and the standard library only."""

from policies.adasd import AdaSD
from policies.adaspec import AdaSpec
from policies.ema import EmaTiers
from policies.fixed import Fixed
from policies.fixed_tree import FixedTree
from policies.relaxed import Relaxed
from policies.schedule import Schedule

__all__ = ["AdaSD", "AdaSpec", "EmaTiers", "Fixed", "FixedTree", "Relaxed", "Schedule"]
