"""Interleaved rounds: every round runs all probes and all points once, in an order that rotates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.forward.bed import Bed, Point
from bench.forward.floors import Kind, Probe
from bench.forward.timing import Spread, seconds

Progress = Callable[[str], None]


@dataclass
class Timings:
    """Seconds per round. Round r of every list ran at about the same time."""

    points: dict[Point, list[float]] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rate:
    """The fastest probe of a kind, round by round; `by` is the one that was fastest most often."""

    per_round: tuple[float, ...]
    by: str

    @property
    def spread(self) -> Spread:
        return Spread.of(self.per_round)


@dataclass(frozen=True, slots=True)
class PointCost:
    """A point's time in seconds, its larger floor in seconds, and time over floor, paired within each round."""

    point: Point
    time: Spread
    floor: float
    bound: Kind
    ratio: Spread


def measure(bed: Bed, points: Sequence[Point], probes: Sequence[Probe], rounds: int, progress: Progress) -> Timings:
    """One round to warm up, which also captures every piece, then `rounds` that count."""
    device, timings = bed.config.device, Timings()
    jobs: list[Point | Probe] = [*probes, *points]
    for turn in range(rounds + 1):
        progress(f"round {turn} of {rounds}" if turn else "warm-up")
        first = turn % len(jobs)
        for job in [*jobs[first:], *jobs[:first]]:
            call = bed.aim(job) if isinstance(job, Point) else job.call
            took = seconds(call, device)
            if turn and isinstance(job, Point):
                timings.points.setdefault(job, []).append(took)
            elif turn and isinstance(job, Probe):
                timings.probes.setdefault(job.name, []).append(took)
    return timings


def rate(probes: Sequence[Probe], timings: Timings, kind: Kind) -> Rate:
    """Units a second."""
    rates = {
        probe.name: [probe.amount / s for s in timings.probes[probe.name]] for probe in probes if probe.kind == kind
    }
    names = list(rates)
    best = [max(names, key=lambda name: rates[name][turn]) for turn in range(len(rates[names[0]]))]
    return Rate(tuple(rates[name][turn] for turn, name in enumerate(best)), max(names, key=best.count))


def point_cost(bed: Bed, point: Point, timings: Timings, read: Rate, multiply: Rate) -> PointCost:
    """Floors at the median rates; the ratio at each round's own, so that a machine that slows down slows both."""
    work, times = bed.work(point), timings.points[point]
    floor, bound = work.floor(read.spread.median, multiply.spread.median)
    rates = zip(times, read.per_round, multiply.per_round, strict=True)
    ratios = [took / work.floor(bytes_per_s, flops_per_s)[0] for took, bytes_per_s, flops_per_s in rates]
    return PointCost(point, Spread.of(times), floor, bound, Spread.of(ratios))


def ratio(timings: Timings, above: Point, below: Point) -> Spread:
    """One point's time over another's, paired within each round."""
    pairs = zip(timings.points[above], timings.points[below], strict=True)
    return Spread.of([mine / other for mine, other in pairs])
