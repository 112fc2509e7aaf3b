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
    """What was found with `batch` requests side by side: a summary of each arm, each of our arms over each peer."""

    summaries: list[ArmSummary]
    comparisons: list[Comparison]
    results: list[Measurement]
    batch: int = 1


def conclude(
    arms: Sequence[Arm],
    results: Sequence[Measurement],
    *,
    peers: Sequence[str],
    comparable: bool,
    gap: Gap,
    batch: int = 1,
) -> Outcome:
    """`peers` are the labels of arms that are not ours; `comparable` as for `summarize`; `gap` judges near ties."""
    ours = [arm for arm in arms if arm.label not in peers]
    ties = near_ties(results, gap) if comparable else None
    summaries = summarize(arms, results, comparable=comparable, near_ties=ties)
    return Outcome(summaries, compare(results, ours, peers), list(results), batch)


def others_of(outcomes: Sequence[Outcome]) -> ForeignCpu:
    """How busy the machine was with other things."""
    return foreign_cpu([result for outcome in outcomes for result in outcome.results])


def outcomes_json(
    outcomes: Sequence[Outcome], engine: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, object]:
    """`engine` is the engine's own description, `settings` what was asked for."""
    others = others_of(outcomes)
    machine = machine_facts(engine) | {"foreign_cpu": others.mean, "foreign_cpu_max": others.worst}
    return {
        "machine": machine,
        "settings": dict(settings),
        "arms": [
            {"batch": outcome.batch, **summary.as_json()} for outcome in outcomes for summary in outcome.summaries
        ],
        "against_peers": [
            {"batch": outcome.batch, **comparison.as_json()}
            for outcome in outcomes
            for comparison in outcome.comparisons
        ],
    }
