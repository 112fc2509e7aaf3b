"""The figures as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from adaptive.benchmark.machine import FOREIGN_CPU_LIMIT
from bench.forward.claims import Verdict
from bench.forward.measure import PointCost, Rate
from bench.forward.timing import Spread


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found. `read` is in bytes a second, `multiply` in operations a second."""

    read: Rate
    multiply: Rate
    costs: Sequence[PointCost]
    verdicts: Sequence[Verdict]
    foreign_cpu: float

    def as_json(self) -> dict[str, object]:
        return {
            "foreign_cpu": round(self.foreign_cpu, 4),
            "floors": {
                "read_gb_per_s": self.read.spread.scaled(1e-9).as_json() | {"by": self.read.by},
                "multiply_gflop_per_s": self.multiply.spread.scaled(1e-9).as_json() | {"by": self.multiply.by},
            },
            "points": [_point_json(cost) for cost in self.costs],
            "claims": [_claim_json(verdict) for verdict in self.verdicts],
        }

    def show(self, console: Console, title: str) -> None:
        console.print(self._rates())
        console.print(self._points(title))
        console.print(self._claims())
        quiet = "" if self.foreign_cpu <= FOREIGN_CPU_LIMIT else ": not a quiet machine, the times are too high"
        console.print(f"{self.foreign_cpu:.0%} of the CPUs were used by other processes{quiet}")

    def _rates(self) -> str:
        read, multiply = self.read.spread.scaled(1e-9), self.multiply.spread.scaled(1e-9)
        return (
            f"floors: memory is read at {_range(read)} GB/s ({self.read.by}), "
            f"matrices are multiplied at {_range(multiply)} GFLOP/s ({self.multiply.by}); median (10th–90th percentile)"
        )

    def _points(self, title: str) -> Table:
        columns = (
            "rows",
            "tokens a row",
            "context",
            "packed",
            "ms",
            "10–90 %",
            "floor ms",
            "floor by",
            "× floor",
            "10–90 %",
        )
        table = _table(title, columns)
        for cost in self.costs:
            point, time = cost.point, cost.time.scaled(1e3)
            sizes = (len(point.tokens), point.width, point.context, sum(point.tokens))
            times = (f"{time.median:.2f}", _between(time), f"{1e3 * cost.floor:.2f}", cost.bound)
            table.add_row(*map(str, sizes), *times, f"{cost.ratio.median:.2f}", _between(cost.ratio))
        return table

    def _claims(self) -> Table:
        table = _table("claims, paired within each round", ("claim", "context", "ratio", "10–90 %", "at most", ""))
        table.columns[0].justify = "left"
        for verdict in self.verdicts:
            claim, ratio = verdict.claim, verdict.ratio
            said = "met" if verdict.met else "[red]missed[/red]"
            ratios = (f"{ratio.median:.3f}", _between(ratio), f"{claim.limit:.2f}")
            table.add_row(claim.text, str(claim.above.context), *ratios, said)
        return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _between(spread: Spread) -> str:
    return f"{spread.p10:.2f}–{spread.p90:.2f}"


def _range(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.p10:.1f}–{spread.p90:.1f})"


def _point_json(cost: PointCost) -> dict[str, object]:
    point = cost.point
    return {
        "batch": len(point.tokens),
        "tokens_per_row": point.width,
        "context": point.context,
        "verify_tokens": sum(point.tokens),
        "ms": cost.time.scaled(1e3).as_json(),
        "floor_ms": round(1e3 * cost.floor, 4),
        "bound": cost.bound,
        "ratio": cost.ratio.as_json(),
    }


def _claim_json(verdict: Verdict) -> dict[str, object]:
    claim = verdict.claim
    return {
        "claim": claim.text,
        "tokens": list(claim.above.tokens),
        "against": list(claim.below.tokens),
        "context": claim.above.context,
        "ratio": verdict.ratio.as_json(),
        "limit": claim.limit,
        "met": verdict.met,
    }
