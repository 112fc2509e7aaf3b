"""Arm against arm: each of ours over each of the others', task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from adaptive.benchmark.arms import Arm
from adaptive.benchmark.measure import Measurement
from adaptive.benchmark.summary import Ratio, paired_ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second of `policy` over those of `peer` on one task (None: all), paired within each repeat."""

    task: str | None
    policy: str
    drafter: str | None
    peer: str
    ratio: Ratio

    def as_json(self) -> dict[str, object]:
        figures = asdict(self.ratio)
        names = {"median": "ratio", "low": "ratio_min", "high": "ratio_max"}
        return {"task": self.task, "policy": self.policy, "drafter": self.drafter, "peer": self.peer} | {
            names[key]: value for key, value in figures.items()
        }


def compare(results: Sequence[Measurement], ours: Sequence[Arm], peers: Sequence[str]) -> list[Comparison]:
    """All pairs, each on every task and, where there is more than one task, on all of them together."""
    tasks: list[str | None] = list(dict.fromkeys(result.task for result in results))
    if len(tasks) > 1:
        tasks.append(None)
    return [
        Comparison(task, arm.shown, arm.drafter, peer, paired_ratio(results, arm.label, task, peer))
        for task in tasks
        for peer in peers
        for arm in ours
    ]
