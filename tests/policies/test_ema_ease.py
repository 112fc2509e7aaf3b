"""Waits shrink as requests leave, whether or not there is anything to shrink."""

from __future__ import annotations

import math

import numpy as np

from policies.ema_ladder import Ladder
from policies.ema_slot import Pacing, Slot


def slow_ease(slot: Slot, share: float) -> tuple[list[int], list[int]]:
    """The rule as it reads, applied to every rung."""
    waits = [max(math.ceil(wait * (1 - share)), slot.pacing.first_wait) for wait in slot._waits]
    closed = [until - math.ceil(max(until - slot.reports, 0) * share) for until in slot._closed_until]
    return waits, closed


def test_easing_is_the_rule_at_every_moment_of_a_life() -> None:
    rng = np.random.default_rng(4)
    slot = Slot(Ladder((0, 1, 3, 6)), 0, Pacing(dwell=1, trial=4, backoff=64, eager=True))
    shortened = 0
    for step in range(3000):
        chance = 0.95 if step // 300 % 2 else 0.1
        slot.observe(float(min(rng.geometric(1 - chance) - 1, slot.gamma)))
        if rng.random() < 0.2:
            share = float(rng.uniform(0, 0.3))
            before = (list(slot._waits), list(slot._closed_until))
            expected = slow_ease(slot, share)
            slot.ease(share)
            assert (slot._waits, slot._closed_until) == expected
            shortened += before != expected
    assert shortened > 10
