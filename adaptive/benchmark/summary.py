"""From runs to numbers: throughput and paired ratios, latency percentiles, acceptance, lossless check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

import numpy as np

from adaptive.benchmark.agreement import Tokens, agreement
from adaptive.benchmark.arms import Arm, Run
from adaptive.benchmark.cost import StepCost, step_cost
from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT, SHORTEST_READABLE_S
from adaptive.benchmark.measure import Measurement
from adaptive.requests import RequestStats
from adaptive.slo import Attainment, merged

BASELINE = "fixed:0"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput relative to plain decoding: median and spread, over repeats, of the ratio inside each repeat."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm over one task, or over all of them. What an arm can not tell is nan or empty.

    `tokens_per_s` counts prompt processing too. `tau` is tokens per step, bonus included; `alpha` accepted / drafted;
    `wasted` the drafted tokens that were thrown away; `lossy_accepted` of the accepted ones stood beyond the exact rule
    (`RequestStats`). `alpha_by_position` is the share of the tokens verified at a depth that stood, for which all
    before them had to.
    """

    requests: int
    tokens: int
    seconds: float
    tokens_per_s: float
    ratio: Ratio
    ttft_ms: float
    tpot_ms: float
    tpot_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    steps: int
    drafted: int
    accepted: int
    wasted: int
    lossy_accepted: int
    divergence_spent: float
    tau: float
    alpha: float
    alpha_by_position: tuple[float, ...]
    cost: StepCost


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """`mismatches` counts the requests whose greedy tokens differ from plain decoding's (None: not comparable).

    `near_ties` are those of them that differ only where two tokens are all but equally likely (None: not looked at).
    `agreement` is the mean share of an answer before it leaves plain decoding's (nan: not comparable).
    """

    label: str
    policy: str
    drafter: str | None
    distinct_requests: int
    overall: Figures
    tasks: Mapping[str, Figures]
    gamma_histogram: Mapping[int, int]
    reasons: Mapping[str, int]
    controller_us_per_step: float
    mismatches: int | None
    near_ties: int | None = None
    agreement: float = math.nan
    slo: Mapping[str, Attainment] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Flat, as `{"policy", "drafter", "tokens_per_s", "ratio", ...}`, with the tasks below."""
        return {
            "policy": self.policy,
            "drafter": self.drafter,
            "distinct_requests": self.distinct_requests,
            **_figures_json(self.overall),
            "mismatches": self.mismatches,
            "near_ties": self.near_ties,
            "agreement": self.agreement,
            "controller_us_per_step": self.controller_us_per_step,
            "gamma_histogram": dict(self.gamma_histogram),
            "reasons": dict(self.reasons),
            "slo": {name: one.to_dict() for name, one in self.slo.items()},
            "tasks": {task: _figures_json(figures) for task, figures in self.tasks.items()},
        }


@dataclass(frozen=True, slots=True)
class ForeignCpu:
    """The share of the machine that other processes used: the mean over the measured time, and the worst run's."""

    mean: float
    worst: float

    @property
    def too_high(self) -> bool:
        return self.mean > FOREIGN_CPU_LIMIT


def foreign_cpu(results: Sequence[Measurement]) -> ForeignCpu:
    """Over all runs, weighted by their time; runs too short for the clock's ticks can not be the worst."""
    seconds = sum(result.run.seconds for result in results)
    mean = _divide(sum(result.run.foreign_cpu * result.run.seconds for result in results), seconds)
    readable = [result.run.foreign_cpu for result in results if result.run.seconds >= SHORTEST_READABLE_S]
    return ForeignCpu(mean, max(readable, default=mean))


def summarize(
    arms: Sequence[Arm],
    results: Sequence[Measurement],
    *,
    comparable: bool,
    near_ties: Mapping[str, int] | None = None,
) -> list[ArmSummary]:
    """One summary per arm. `results` must hold the baseline `fixed:0` in every repeat.

    `comparable`: all arms should have emitted the same tokens (greedy decoding under a lossless rule). `near_ties` are
    counted by `adaptive.benchmark.near_ties`.
    """
    ties = near_ties or {}
    return [replace(_summarize_arm(arm, results, comparable), near_ties=ties.get(arm.label)) for arm in arms]


def _summarize_arm(arm: Arm, results: Sequence[Measurement], comparable: bool) -> ArmSummary:
    own = [result for result in results if result.arm == arm.label]
    plain = [result for result in results if result.arm == BASELINE]
    runs = [result.run for result in own]
    steps = [step for run in runs for step in run.steps]
    tasks = dict.fromkeys(result.task for result in results)
    return ArmSummary(
        label=arm.label,
        policy=arm.shown,
        drafter=arm.drafter,
        distinct_requests=len({prompt for run in runs for prompt in run.tokens}),
        overall=_figures(own, plain, paired_ratio(results, arm.label, None)),
        tasks={
            task: _figures(_of(own, task), _of(plain, task), paired_ratio(results, arm.label, task)) for task in tasks
        },
        gamma_histogram=dict(sorted(Counter(step.gamma for step in steps).items())),
        reasons=dict(Counter(step.reason or "unnamed" for step in steps).most_common()),
        controller_us_per_step=1e6 * _divide(sum(run.controller_s for run in runs), len(steps)),
        mismatches=len(differing_answers(results, arm.label)) if comparable else None,
        agreement=agreement((plain, own) for _, plain, own in _answers(results, arm.label)) if comparable else math.nan,
        slo=merged(run.slo for run in runs),
    )


def _of(results: Sequence[Measurement], task: str) -> list[Measurement]:
    return [result for result in results if result.task == task]


def _figures(own: Sequence[Measurement], plain: Sequence[Measurement], ratio: Ratio) -> Figures:
    runs = [result.run for result in own]
    stats = [one for run in runs for one in run.stats]
    tokens = _token_count(runs)
    seconds = sum(run.seconds for run in runs)
    steps = sum(one.steps for one in stats)
    drafted = sum(one.drafted for one in stats)
    accepted = sum(one.accepted for one in stats)
    tpot = [one.tpot_ms for one in stats if one.tokens > 1]
    itl = [gap for run in runs for gap in run.itl_ms]
    return Figures(
        requests=sum(len(run.tokens) for run in runs),
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=_divide(tokens, seconds),
        ratio=ratio,
        ttft_ms=percentile([one.ttft_ms for one in stats], 50),
        tpot_ms=percentile(tpot, 50),
        tpot_p99_ms=percentile(tpot, 99),
        itl_p50_ms=percentile(itl, 50),
        itl_p99_ms=percentile(itl, 99),
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        wasted=drafted - accepted,
        lossy_accepted=sum(one.lossy_accepted for one in stats),
        divergence_spent=sum(one.divergence_spent for one in stats),
        tau=_divide(tokens, steps),
        alpha=_divide(accepted, drafted),
        alpha_by_position=_alpha_by_position(stats),
        cost=step_cost(runs, [result.run for result in plain]),
    )


def paired_ratio(results: Sequence[Measurement], label: str, task: str | None, base: str = BASELINE) -> Ratio:
    """One arm's throughput over another's, on one task or (None) on all, paired within each repeat."""
    ratios = []
    for repeat in dict.fromkeys(result.repeat for result in results):
        here = [result for result in results if result.repeat == repeat and task in (None, result.task)]
        own, other = ([result.run for result in here if result.arm == name] for name in (label, base))
        ratios.append(_divide(_speed(own), _speed(other)))
    return Ratio(float(np.median(ratios)), min(ratios), max(ratios))


def differing_answers(results: Sequence[Measurement], label: str) -> dict[str, set[tuple[Tokens, Tokens]]]:
    """By prompt id, the pairs of plain decoding's answer and another one that the arm gave in the same repeat."""
    differing: dict[str, set[tuple[Tokens, Tokens]]] = {}
    for prompt, plain, own in _answers(results, label):
        if own != plain:
            differing.setdefault(prompt, set()).add((plain, own))
    return differing


def _answers(results: Sequence[Measurement], label: str) -> Iterator[tuple[str, Tokens, Tokens]]:
    """Of every request a prompt's id, plain decoding's answer in the same repeat, and the arm's."""
    plain = {(result.repeat, result.task): result.run.tokens for result in results if result.arm == BASELINE}
    for result in results:
        if result.arm == label:
            for prompt, tokens in result.run.tokens.items():
                yield prompt, plain[result.repeat, result.task][prompt], tokens


def _alpha_by_position(stats: Iterable[RequestStats]) -> tuple[float, ...]:
    pairs = [(one.accepted_by_position, one.drafted_by_position) for one in stats]
    accepted = [sum(column) for column in zip_longest(*(pair[0] for pair in pairs), fillvalue=0)]
    drafted = [sum(column) for column in zip_longest(*(pair[1] for pair in pairs), fillvalue=0)]
    return tuple(_divide(stood, tried) for stood, tried in zip_longest(accepted, drafted, fillvalue=0))


def percentile(values: Sequence[float], rank: float) -> float:
    return float(np.percentile(values, rank)) if values else math.nan


def _token_count(runs: Iterable[Run]) -> int:
    return sum(map(len, chain.from_iterable(run.tokens.values() for run in runs)))


def _speed(runs: Sequence[Run]) -> float:
    return _divide(_token_count(runs), sum(run.seconds for run in runs))


def _divide(above: float, below: float) -> float:
    return above / below if below else math.nan


def _figures_json(figures: Figures) -> dict[str, object]:
    return {
        "tokens_per_s": figures.tokens_per_s,
        "ratio": figures.ratio.median,
        "ratio_min": figures.ratio.low,
        "ratio_max": figures.ratio.high,
        "ttft_ms": figures.ttft_ms,
        "tpot_ms": figures.tpot_ms,
        "tpot_p50_ms": figures.tpot_ms,
        "tpot_p99_ms": figures.tpot_p99_ms,
        "itl_p50_ms": figures.itl_p50_ms,
        "itl_p99_ms": figures.itl_p99_ms,
        "tau": figures.tau,
        "alpha": figures.alpha,
        "alpha_by_position": list(figures.alpha_by_position),
        "cost_ratio": figures.cost.ratio,
        "draft_ms": figures.cost.draft_ms,
        "verify_ms": figures.cost.verify_ms,
        "requests": figures.requests,
        "tokens": figures.tokens,
        "seconds": figures.seconds,
        "steps": figures.steps,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "wasted": figures.wasted,
        "lossy_accepted": figures.lossy_accepted,
        "divergence_spent": figures.divergence_spent,
    }
