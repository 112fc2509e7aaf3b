"""The host's picture of the batch: what the controller is shown before a step and told after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.contract import BoolArray, FloatArray, IntArray, StepReport, StepView

if TYPE_CHECKING:
    from engine.feedback import Feedback
    from engine.request_state import RequestState

CONTEXT, EMITTED = range(2)
GREEDY, LOSSY, SPECULATE = range(3)
Number = TypeVar("Number", np.int64, np.float64, np.bool_)
NOT_YET = float("inf")  # when a request without tokens got its first one


class _Wishes(NamedTuple):
    """What the batch's requests asked for, which does not change while they sit in their rows."""

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
        # Of the view before: most batches have the rows of the one before, and most requests ask for the same.
        self._places: list[int] = []
        self._rows: IntArray = np.zeros(0, dtype=np.int64)
        self._wishes: _Wishes | None = None
        self._clock = clock
        self._step = 0
        self._started_at = float("nan")  # when the step before ended; nan after idle
        self.completed_at = float("nan")

    def seat(self, request: RequestState) -> None:
        """A request takes its row, for the first time or again."""
        self.align(request)
        row, wants = request.row, request.request
        flags = [wants.sampling.greedy, wants.allow_lossy, wants.speculation]
        slo = float("nan") if wants.tpot_slo_ms is None else wants.tpot_slo_ms / 1e3
        same_slo = np.array_equal(self._tpot_slo[row], slo, equal_nan=True) and self._classes[row] == wants.slo_class
        if not same_slo or self._flags[:, row].tolist() != flags:
            self._flags[:, row], self._tpot_slo[row], self._classes[row] = flags, slo, wants.slo_class
            self._wishes = None

    def align(self, request: RequestState) -> None:
        """Count a request's tokens anew, after an interrupted step."""
        row = request.row
        self._lengths[:, row] = (request.context_len, len(request.tokens))
        self._first_token[row] = request.first_token_at if request.tokens else NOT_YET

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
        if places != self._places:
            self._places, self._rows, self._wishes = places, _shared(np.array(places, dtype=np.int64)), None
        rows, now = self._rows, self._clock()
        wishes = self._wishes = self._wishes or self._look_up(places)
        lengths = _shared(self._lengths.take(rows, axis=1))  # `advance` goes by these
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
            tpot_slo=wishes.tpot_slo,
            slo_class=wishes.classes,
            greedy=wishes.flags[GREEDY],
            allow_lossy=wishes.flags[LOSSY],
            may_speculate=wishes.flags[SPECULATE],
            match_len=None if matches is None else matches[rows],
            stale_tokens=stale,
        )

    def _look_up(self, places: list[int]) -> _Wishes:
        flags, slo = self._flags.take(self._rows, axis=1), self._tpot_slo.take(self._rows)
        return _Wishes(_shared(flags), _shared(slo), tuple([self._classes[place] for place in places]))

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
        for lengths in self._lengths:
            lengths[view.rows] += report.emitted
        first = view.rows[view.emitted == 0]
        if first.size:
            self._first_token[first] = self.completed_at


def _shared(array: NDArray[Number]) -> NDArray[Number]:
    """The same array, which no policy may change."""
    array.flags.writeable = False
    return array
