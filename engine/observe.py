"""The host's picture of the batch: what the controller is shown before a step and told after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray, StepReport, StepView

if TYPE_CHECKING:
    from engine.feedback import Feedback
    from engine.request_state import RequestState

CONTEXT, EMITTED, GREEDY, LOSSY, SPECULATE = range(5)
FIRST_TOKEN, TPOT_SLO = range(2)


class Observer:
    """Numbers per row, kept up to date step by step so that a view is two array look-ups, not a loop over requests."""

    def __init__(self, rows: int, clock: Callable[[], float]) -> None:
        self._ints: IntArray = np.zeros((5, rows), dtype=np.int64)
        self._floats: FloatArray = np.full((2, rows), np.nan)
        self._classes: list[str | None] = [None] * rows
        self._clock = clock
        self._step = 0
        self._started_at = float("nan")  # when the step before ended; nan after idle
        self.completed_at = float("nan")

    def seat(self, request: RequestState) -> None:
        """A request takes its row, for the first time or again."""
        wants = request.request
        lengths = (request.context_len, len(request.tokens))
        self._ints[:, request.row] = (*lengths, wants.sampling.greedy, wants.allow_lossy, wants.speculation)
        slo = float("nan") if wants.tpot_slo_ms is None else wants.tpot_slo_ms / 1e3
        self._floats[:, request.row] = (request.first_token_at if request.tokens else np.nan, slo)
        self._classes[request.row] = wants.slo_class

    def align(self, request: RequestState) -> None:
        """Count a request's tokens anew, after an interrupted step."""
        self._ints[CONTEXT, request.row] = request.context_len
        self._ints[EMITTED, request.row] = len(request.tokens)
        if request.tokens:
            self._floats[FIRST_TOKEN, request.row] = request.first_token_at

    def pause(self) -> None:
        """Nothing decodes: the next step's duration would measure the wait."""
        self._started_at = float("nan")

    def view(
        self,
        batch: Sequence[RequestState],
        prefill_tokens: int,
        waiting: int,
        free: float,
        matches: IntArray | None,
        stale: Mapping[str, IntArray] | None = None,
    ) -> StepView:
        places = [request.row for request in batch]
        rows: IntArray = np.array(places, dtype=np.int64)
        ints, floats, now = self._ints.take(rows, axis=1), self._floats.take(rows, axis=1), self._clock()
        for kept in (rows, ints):  # `report` and `advance` go by these: no policy may change them
            kept.flags.writeable = False
        flags: BoolArray = ints[GREEDY:].astype(np.bool_)
        return StepView(
            step=self._step,
            known_step=self._step - 1,
            now=now,
            num_decode=len(rows),
            rows=rows,
            context_lens=ints[CONTEXT],
            emitted=ints[EMITTED],
            num_prefill_tokens=prefill_tokens,
            num_waiting=waiting,
            kv_free=free,
            elapsed=np.fmax(now - floats[FIRST_TOKEN], 0.0),  # 0 for nan: no token yet,
            tpot_slo=floats[TPOT_SLO],
            slo_class=tuple([self._classes[place] for place in places]),
            greedy=flags[0],
            allow_lossy=flags[1],
            may_speculate=flags[2],
            match_len=None if matches is None else matches[rows],
            stale_tokens=stale,
        )

    def report(self, view: StepView, feedback: Feedback, prefill_s: float) -> StepReport:
        """What the step did; `emitted` is filled in as the requests take their tokens."""
        self.completed_at = self._clock()
        report = StepReport(
            step=view.step,
            gamma=feedback.gamma,
            rows=view.rows,
            live=np.ones(len(view.rows), dtype=np.bool_),
            drafted=feedback.drafted,
            verified=feedback.verified,
            accepted=feedback.accepted,
            emitted=np.zeros(len(view.rows), dtype=np.int64),
            lossy_accepted=feedback.lossy,
            divergence_spent=feedback.spent,
            num_prefill_tokens=view.num_prefill_tokens,
            step_s=self.completed_at - self._started_at,
            draft_s=feedback.draft_s,
            verify_s=feedback.verify_s,
            signals=feedback.signals,
            prefill_s=prefill_s,
        )
        self._started_at = self.completed_at
        return report

    def advance(self, view: StepView, report: StepReport) -> None:
        """Account for a finished step."""
        self._step += 1
        self._ints[CONTEXT, view.rows] += report.emitted
        self._ints[EMITTED, view.rows] += report.emitted
        first = view.rows[view.emitted == 0]
        if first.size:
            self._floats[FIRST_TOKEN, first] = self.completed_at
