"""Interleaved measurement: every repeat runs every arm on every group of prompts, in changing order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adaptive.benchmark.arms import Arm, Run
from adaptive.benchmark.prompts import PromptItem, group_by_task
from adaptive.requests import Sampling

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Measurement:
    repeat: int
    task: str
    arm: str
    run: Run


Progress = Callable[[str], None]
"""Told what is about to run, once per unit of `units(...)`."""


def units(arms: Sequence[Arm], items: Sequence[PromptItem], repeat: int) -> int:
    """How many runs `measure` makes, warm-up included."""
    return len(arms) * (1 + repeat * len(group_by_task(items)))


def measure(
    arms: Sequence[Arm], items: Sequence[PromptItem], sampling: Sampling, repeat: int, progress: Progress
) -> list[Measurement]:
    """Neighbours in time are compared with each other, so slow drift of the machine hits all arms alike.

    A short unmeasured run of each arm on the longest prompt comes first: kernels pick their plans at first use, and
    a prompt that does not fit is refused before minutes have passed.
    """
    longest = max(items, key=lambda item: len(str(item.prompt)))
    for arm in arms:
        progress(f"warm-up {arm.label}")
        arm.run([longest], replace(sampling, max_tokens=min(WARM_UP_TOKENS, sampling.max_tokens)))
    results: list[Measurement] = []
    for turn in range(repeat):
        for place, (task, group) in enumerate(group_by_task(items).items()):
            for arm in _order(arms, turn + place):
                progress(f"{task} {arm.label} ({turn + 1}/{repeat})")
                results.append(Measurement(turn, task, arm.label, arm.run(group, sampling)))
    return results


def _order(arms: Sequence[Arm], number: int) -> Sequence[Arm]:
    """Rotated each time, and every second time backwards, so that no arm always follows the same one."""
    first = number % len(arms)
    order = (*arms[first:], *arms[:first])
    return order if number % 2 == 0 else order[::-1]
