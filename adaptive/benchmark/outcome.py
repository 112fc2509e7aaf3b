"""Everything a benchmark found, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adaptive.benchmark.arms import Arm
from adaptive.benchmark.compare import Comparison, compare
from adaptive.benchmark.machine import machine_facts
from adaptive.benchmark.measure import Measurement
from adaptive.benchmark.summary import ArmSummary, ForeignCpu, foreign_cpu, summarize
from adaptive.benchmark.ties import Gap, near_ties


@dataclass(frozen=True, slots=True)
class Outcome:
    """One summary an arm, each of our arms over each peer, and how busy the machine was with other things."""

    summaries: list[ArmSummary]
    comparisons: list[Comparison]
    others: ForeignCpu

    def as_json(self, engine: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
        """`engine` is the engine's own description, `settings` what was asked for."""
        machine = machine_facts(engine) | {"foreign_cpu": self.others.mean, "foreign_cpu_max": self.others.worst}
        return {
            "machine": machine,
            "settings": dict(settings),
            "arms": [summary.as_json() for summary in self.summaries],
            "against_peers": [comparison.as_json() for comparison in self.comparisons],
        }


def conclude(
    arms: Sequence[Arm], results: Sequence[Measurement], *, peers: Sequence[str], comparable: bool, gap: Gap
) -> Outcome:
    """`peers` are the labels of arms that are not ours; `comparable` as for `summarize`; `gap` judges near ties."""
    ours = [arm.label for arm in arms if arm.label not in peers]
    ties = near_ties(results, gap) if comparable else None
    summaries = summarize(arms, results, comparable=comparable, near_ties=ties)
    return Outcome(summaries, compare(results, ours, peers), foreign_cpu(results))
