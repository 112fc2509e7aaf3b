"""Policies: how deep to draft, decided once per step from host numbers. numpy and the standard library only."""

from policies.ema import EmaTiers
from policies.fixed import Fixed
from policies.fixed_tree import FixedTree
from policies.schedule import Schedule

__all__ = ["EmaTiers", "Fixed", "FixedTree", "Schedule"]
