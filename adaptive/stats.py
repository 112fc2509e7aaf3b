"""What a controller counted: a cheap tally on the way, a frozen record for whoever asks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adaptive.contract import IntArray, StepReport
from adaptive.slo import Attainment

BLOCK_ROWS = 4096


@runtime_checkable
class Telling(Protocol):
    """A policy with numbers of its own to show, beside those that its decisions leave."""

    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class ControllerStats:
    """Totals since the controller was opened, over reported steps and rows that were live in them.

    `steps` counts batch steps, `row_steps` a step once for each live row; `tokens` are those decode steps emitted (a
    prompt's own step is not reported). `verified_by_position[k]` draft tokens at depth k were verified, of which
    `accepted_by_position[k]` stood. `lossy_accepted` of them stood beyond the exact rule, and `divergence_spent` says
    how far that strays from the model (docs/acceptance.md). `held` decisions kept their γ because of the guard's
    dwell; `clamped` and `policy_errors` count by kind; `unmatched` reports named a step whose decision is not known.
    `control_s` is time in `plan` and `report`, the policy's included. `slo` has the limits on time per token that
    finished requests kept, `metrics` what the policy tells of itself (`Telling`).
    """

    policy: str
    steps: int
    row_steps: int
    tokens: int
    drafted: int
    verified: int
    accepted: int
    lossy_accepted: int
    divergence_spent: float
    verified_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    gamma_histogram: Mapping[int, int]
    switches: int
    reasons: Mapping[str, int]
    held: int
    clamped: Mapping[str, int]
    policy_errors: Mapping[str, int]
    last_error: str | None
    unmatched: int
    control_s: float
    slo: Mapping[str, Attainment] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def tau(self) -> float:
        """Mean tokens emitted per row and step, bonus included; nan before the first report."""
        return self.tokens / self.row_steps if self.row_steps else math.nan

    @property
    def alpha(self) -> float:
        """Share of verified draft tokens that were accepted; nan when none was verified."""
        return self.accepted / self.verified if self.verified else math.nan

    @property
    def control_us(self) -> float:
        """Microseconds of controller and policy per step; nan before the first report."""
        return 1e6 * self.control_s / self.steps if self.steps else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, `tau`, `alpha` and `control_us` included."""
        derived = {"tau": self.tau, "alpha": self.alpha, "control_us": self.control_us}
        return asdict(self) | derived | {"slo": {name: one.to_dict() for name, one in self.slo.items()}}


class Tally:
    """Counts reports. Rows are copied and summed a block of reports at a time: two microseconds a step, not ten."""

    def __init__(self, max_gamma: int) -> None:
        self.steps = 0
        self.switches = 0
        self.lossy_accepted = 0
        self.divergence_spent = 0.0
        self.gammas: Counter[int] = Counter()
        self.drafted: IntArray = np.zeros(max_gamma + 1, np.int64)
        """`[γ + 1]`, like `verified` and `accepted`: how many live rows had exactly so many."""
        self.verified = self.drafted.copy()
        self.accepted = self.drafted.copy()
        self.tokens = 0
        self._last_gamma: int | None = None
        self._block: list[IntArray] = []
        """Per report the rows' `live`, `drafted`, `verified`, `accepted` and `emitted`, one behind the other."""
        self._rows = 0

    def add(self, report: StepReport) -> None:
        """Count one report; its arrays are copied."""
        gamma = report.gamma
        self.steps += 1
        self.gammas[gamma] += 1
        if gamma != self._last_gamma:
            self.switches += self._last_gamma is not None
            self._last_gamma = gamma
        self._block.append(
            np.concatenate((report.live, report.drafted, report.verified, report.accepted, report.emitted))
        )
        self._rows += len(report.rows)
        if self._rows > BLOCK_ROWS:
            self.fold()
        if report.lossy_accepted is not None:
            self.lossy_accepted += int(report.lossy_accepted[report.live].sum())
        if report.divergence_spent is not None:
            self.divergence_spent += float(report.divergence_spent[report.live].sum())

    def fold(self) -> None:
        """Bring the totals up to date."""
        if not self._block:
            return
        rows_5N = np.concatenate([rows.reshape(5, -1) for rows in self._block], axis=1)
        if not rows_5N[0].all():
            rows_5N = rows_5N[:, rows_5N[0].astype(np.bool_)]
        _, drafted, verified, accepted, emitted = rows_5N
        self.drafted = _add_counts(self.drafted, drafted)
        self.verified = _add_counts(self.verified, verified)
        self.accepted = _add_counts(self.accepted, accepted)
        self.tokens += int(emitted.sum())
        self._block.clear()
        self._rows = 0


def total(histogram: IntArray) -> int:
    """Sum of the counted values."""
    return int(histogram @ np.arange(len(histogram)))


def reached(histogram: IntArray) -> tuple[int, ...]:
    """At k: how many counted values were above k."""
    return tuple(np.cumsum(histogram[:0:-1])[::-1].tolist())


def _add_counts(histogram: IntArray, values: IntArray) -> IntArray:
    counts = np.bincount(values, minlength=len(histogram))
    counts[: len(histogram)] += histogram
    return counts
