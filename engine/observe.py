"""The host's picture of the batch: what the controller is shown before a step and told after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adaptive.contract import BoolArray, FloatArray, IntArray, StepReport, StepView

if TYPE_CHECKING:
    from engine.feedback import Feedback
    from engine.request_state import RequestState

CONTEXT, EMITTED = range(2)
GREEDY, LOSSY, SPECULATE = range(3)
NOT_YET = float("inf")  # when a request without tokens got its first one


class _Seated(NamedTuple):
    """A batch and what does not change while its requests sit in their rows. No policy may write to the arrays."""

    batch: list[RequestState]
    rows: IntArray
    flags: BoolArray
    tpot_slo: FloatArray
    classes: tuple[str | None, ...]


class Observer:
    """Numbers per row, kept up to date step by step so that a view is two array look-ups, not a loop over requests."""

    def __init__(self, rows: int, clock: Callable[[], float]) -> None:
        self._lengths: IntArray = np.zeros((2, rows), dtype=np.int64)
        self._flags: BoolArray = np.zeros((3, rows), dtype=np.bool_)
        self._first_token: FloatArray = np.full(rows, NOT_YET)
        self._tpot_slo: FloatArray = np.full(rows, np.nan)
        self._classes: list[str | None] = [None] * rows
        self._seated: _Seated | None = None  # of the view before: most steps have the same batch
        self._clock = clock
        self._step = 0
        self._started_at = float("nan")  # when the step before ended; nan after idle
        self.completed_at = float("nan")

    def seat(self, request: RequestState) -> None:
        """A request takes its row, for the first time or again."""
        self.align(request)
        row, wants = request.row, request.request
        self._flags[:, row] = (wants.sampling.greedy, wants.allow_lossy, wants.speculation)
        self._tpot_slo[row] = float("nan") if wants.tpot_slo_ms is None else wants.tpot_slo_ms / 1e3
        self._classes[row] = wants.slo_class
        self._seated = None

    def align(self, request: RequestState) -> None:
        """Count a request's tokens anew, after an interrupted step."""
        row = request.row
        self._lengths[:, row] = (request.context_len, len(request.tokens))
        self._first_token[row] = request.first_token_at if request.tokens else NOT_YET

    def pause(self) -> None:
        """Nothing decodes: the next step's duration would measure the wait."""
        self._started_at = float("nan")
        self._seated = None

    def view(
        self,
        batch: list[RequestState],
        prefill_tokens: int,
        waiting: int,
        free: float,
        matches: IntArray | None,
        stale: Mapping[str, IntArray] | None = None,
    ) -> StepView:
        seated = self._seated
        if seated is None or batch != seated.batch:
            seated = self._seated = self._look(batch)
        rows, flags, now = seated.rows, seated.flags, self._clock()
        lengths = self._lengths.take(rows, axis=1)
        lengths.flags.writeable = False  # `advance` goes by these: no policy may change them
        return StepView(
            step=self._step,
            known_step=self._step - 1,
            now=now,
            num_decode=len(batch),
            rows=rows,
            context_lens=lengths[CONTEXT],
            emitted=lengths[EMITTED],
            num_prefill_tokens=prefill_tokens,
            num_waiting=waiting,
            kv_free=free,
            elapsed=np.maximum(now - self._first_token.take(rows), 0.0),  # 0 where there is no token yet
            tpot_slo=seated.tpot_slo,
            slo_class=seated.classes,
            greedy=flags[GREEDY],
            allow_lossy=flags[LOSSY],
            may_speculate=flags[SPECULATE],
            match_len=None if matches is None else matches[rows],
            stale_tokens=stale,
        )

    def _look(self, batch: Sequence[RequestState]) -> _Seated:
        places = [request.row for request in batch]
        rows: IntArray = np.array(places, dtype=np.int64)
        flags, tpot_slo = self._flags.take(rows, axis=1), self._tpot_slo.take(rows)
        for shared in (rows, flags, tpot_slo):
            shared.flags.writeable = False
        return _Seated(list(batch), rows, flags, tpot_slo, tuple([self._classes[place] for place in places]))

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
        for lengths in self._lengths:
            lengths[view.rows] += report.emitted
        first = view.rows[view.emitted == 0]
        if first.size:
            self._first_token[first] = self.completed_at
