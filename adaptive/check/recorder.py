"""A `Controller` that follows a fixed course of γ and writes down every breach of the contract it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.contract import (
    DRAFT_SIGNALS,
    TARGET_SIGNALS,
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    IntArray,
    Needs,
    Signal,
    StepReport,
    StepView,
    floor_gamma,
)

Course = Callable[[int], int]
"""The γ to ask for at the n-th plan; lowered to one the engine offers."""


@dataclass(frozen=True)
class Lever:
    """What a course adds to its γ: fields of `Needs`, a change to each decision (of turn n), answers on the way."""

    needs: Mapping[str, Any] = field(default_factory=dict)
    pull: Callable[[Decision, StepView, int], Decision] = lambda decision, view, turn: decision
    extend: Callable[[DraftProgress], BoolArray] | None = None
    trim: Callable[[DraftProgress], int | IntArray | None] | None = None


class Recorder:
    """Attach it to an engine; afterwards `violations` says what the engine did wrong."""

    def __init__(self, course: Course, lever: Lever | None = None) -> None:
        self.violations: list[str] = []
        self.reports: list[StepReport] = []
        self.attached = 0
        self.plans = 0
        self.caps: Capabilities | None = None
        self.decisions: dict[int, tuple[Decision, IntArray]] = {}
        """By the step they act on, with the rows that they were made for."""
        self.asked = 0
        self._course = course
        self._lever = lever or Lever()
        self._position = -1
        self._views: dict[int, StepView] = {}
        self._gammas: dict[int, int] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._forgotten: dict[int, int] = {}
        self._newest = -1

    def attach(self, caps: Capabilities) -> Needs:
        self.attached += 1
        self.caps = caps
        self._gammas = dict.fromkeys(range(caps.delay), 0)
        return replace(Needs.everywhere(caps, caps.gammas), **self._lever.needs)

    def plan(self, view: StepView) -> Decision:
        self._check_view(view)
        caps = self._attached_caps()
        gamma = floor_gamma(caps.gammas, self._course(self.plans))
        decision = self._lever.pull(Decision(gamma, reason="check"), view, self.plans)
        self.decisions[view.step + caps.delay] = (decision, view.rows)
        self.plans += 1
        self._position = -1
        self._newest = view.step
        self._views[view.step] = view
        self._gammas[view.step + caps.delay] = gamma
        for row, context, emitted in zip(view.rows, view.context_lens, view.emitted, strict=False):
            self._rows[int(row)] = (int(context), int(emitted))
        return decision

    def extend(self, progress: DraftProgress) -> BoolArray:
        if self._lever.extend is None:
            self.violations.append("extend is called although Needs.stepwise is not set")
            return np.zeros(len(progress.rows), np.bool_)
        self.asked += 1
        at, last = f"extend after position {progress.position}", self._position
        self._breach(progress.position == last + 1, f"{at} follows position {last}")
        self._position = progress.position
        for name, values in progress.signals.items():
            fits = values.shape == progress.rows.shape
            self._breach(fits, f"{at}: signal {name} has not one element for each of {len(progress.rows)} rows")
        return self._lever.extend(progress)

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        if self._lever.trim is None:
            self.violations.append("trim is called although Needs.trim is not set")
            return None
        self.asked += 1
        for name, values in progress.signals.items():
            rows, fits = len(progress.rows), values.ndim == 2 and len(values) == len(progress.rows)
            self._breach(fits, f"trim: signal {name} has shape {values.shape} instead of {rows} rows by gamma")
        return self._lever.trim(progress)

    def report(self, report: StepReport) -> None:
        self.reports.append(report)
        view = self._views.pop(report.step, None)
        if view is None:
            self.violations.append(f"report of step {report.step}, which was not planned or was reported before")
        elif not np.array_equal(report.rows, view.rows):
            self.violations.append(f"report of step {report.step} names rows {report.rows}, its view {view.rows}")
        else:
            self._check_report(report)

    def forget(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._rows.pop(int(row), None)
            self._forgotten[int(row)] = self._newest

    def finish(self) -> None:
        """Nothing may be owed once an idle engine has been stepped past its lag."""
        self._breach(not self._views, f"steps {sorted(self._views)} were never reported")
        self._breach(not self._rows, f"rows {sorted(self._rows)} were never forgotten although their requests ended")

    def _attached_caps(self) -> Capabilities:
        if self.caps is None:
            raise AssertionError("plan is called before attach")
        return self.caps

    def _breach(self, lawful: bool, message: str) -> None:
        if not lawful:
            self.violations.append(message)

    def _check_view(self, view: StepView) -> None:
        at = f"view of step {view.step}"
        batch = len(view.rows)
        self._breach(view.step > self._newest, f"{at} does not come after step {self._newest}")
        self._breach(view.known_step < view.step, f"{at} knows step {view.known_step} already")
        self._breach(1 <= batch == view.num_decode, f"{at} has {batch} rows but num_decode={view.num_decode}")
        self._breach(len(set(view.rows.tolist())) == batch, f"{at} names a row twice: {view.rows}")
        arrays = {
            "context_lens": view.context_lens,
            "emitted": view.emitted,
            "elapsed": view.elapsed,
            "tpot_slo": view.tpot_slo,
            "greedy": view.greedy,
            "allow_lossy": view.allow_lossy,
            "may_speculate": view.may_speculate,
            "match_len": view.match_len,
        }
        for name, array in arrays.items():
            fits = array is None or array.shape == (batch,)
            self._breach(fits, f"{at}: {name} has not one element for each of {batch} rows")
        for row, context, emitted in zip(view.rows, view.context_lens, view.emitted, strict=False):
            before = self._rows.get(int(row), (0, 0))
            grown = context >= before[0] and emitted >= before[1]
            self._breach(bool(grown), f"{at} reuses row {row} before it was forgotten")

    def _check_report(self, report: StepReport) -> None:
        at = f"report of step {report.step}"
        caps = self._attached_caps()
        late = self._newest - report.step
        self._breach(late <= caps.lag, f"{at} is {late} steps late: the engine declares lag={caps.lag}")
        planned = self._gammas.pop(report.step, 0)
        self._breach(report.gamma <= planned, f"{at} has gamma={report.gamma}, planned was {planned}")
        gone = [row for row in report.rows.tolist() if self._forgotten.get(row, -1) >= report.step]
        self._breach(not gone, f"{at} names rows {gone} that were forgotten before it")
        counts = {
            "live": report.live,
            "drafted": report.drafted,
            "verified": report.verified,
            "accepted": report.accepted,
            "emitted": report.emitted,
        }
        misfits = [name for name, array in counts.items() if array.shape != report.rows.shape]
        if misfits:
            self._breach(False, f"{at}: {misfits} have not one element for each of {len(report.rows)} rows")
            return
        ordered = np.stack([0 * report.rows, report.accepted, report.verified, report.drafted])
        lawful = bool(np.all(np.diff(ordered, axis=0) >= 0) and np.all(report.drafted <= report.gamma))
        self._breach(lawful, f"{at} breaks 0 ≤ accepted ≤ verified ≤ drafted ≤ {report.gamma}: {ordered[1:].tolist()}")
        emitted, accepted = report.emitted[report.live], report.accepted[report.live]
        fits = bool(np.all((emitted >= 1) & (emitted <= accepted + 1)))
        self._breach(fits, f"{at}: live rows emitted {emitted} with {accepted} accepted: 1 to accepted + 1 is possible")
        for signal, values in (report.signals or {}).items():
            shape = (len(report.rows), report.gamma)
            if values.shape != shape:
                self._breach(False, f"{at}: signal {signal} has shape {values.shape} instead of {shape}")
            else:
                self._check_signal(at, signal, values, report)

    def _check_signal(self, at: str, signal: Signal, values: NDArray[Any], report: StepReport) -> None:
        """A number wherever there is something to tell, nan elsewhere."""
        known = {**dict.fromkeys(DRAFT_SIGNALS, report.drafted), **dict.fromkeys(TARGET_SIGNALS, report.verified)}
        if signal in known:
            told = np.arange(report.gamma) < known[signal][:, None]
            fits = np.array_equal(told, ~np.isnan(values))
            self._breach(fits, f"{at}: signal {signal} is not nan exactly where no token was drafted or verified")
