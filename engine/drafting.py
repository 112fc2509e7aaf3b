"""Drafting that may end before γ: a row stops at a threshold on the device, or when the policy says so.

The host looks at how far the rows got and launches no more pieces once none of them goes on. Where launches return
before the work is done it looks one piece late, while the next one runs, so that the device never waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.contract import DRAFT_SIGNALS, Controller, DraftProgress, IntArray, Signal
from engine.batch import RowState
from engine.graphs import Answer, Backend, Piece


@dataclass(frozen=True, slots=True)
class Drafted:
    """What drafting came to: tokens per row `[B]`, and the number of pieces that ran."""

    lens: IntArray
    pieces: int

    def packed(self, verify: int | IntArray | None) -> int:
        """Roots and draft tokens that a step will verify; `verify` is as in `Decision`."""
        batch = len(self.lens)
        if isinstance(verify, np.ndarray):
            return batch + int(np.minimum(self.lens, verify.clip(0)).sum())
        tokens = batch + int(self.lens.sum())
        return tokens if verify is None else min(tokens, max(verify, batch))


@dataclass(frozen=True, slots=True)
class DraftWatch:
    """Looks after one step's draft pieces. `rows` are the batch's, `reach` what each could draft `[B]`.

    `signals` are those that the pieces leave; `controller`, where given, is asked after each of them but the last.
    The last piece can not end drafting early, unless it drafts all tokens `at_once`.
    """

    backend: Backend
    state: RowState
    rows: IntArray
    signals: Set[Signal]
    controller: Controller | None
    at_once: bool = False

    def run(self, pieces: Sequence[Piece], reach: IntArray) -> Drafted:
        """Launch pieces until no row wants another token."""
        lens, late = reach, self.backend.overlaps and self.controller is None
        pending: Answer | None = None
        for position, piece in enumerate(pieces):
            if position and not (lens > position).any():
                return Drafted(lens, position)
            piece()
            if position == len(pieces) - 1 and not self.at_once:
                break
            asked = self.backend.ask(self.state.feedback_X) if self.signals else None
            if late:
                asked, pending = pending, asked
            packed = None if asked is None else asked()
            lens = self._shortened(lens, packed)
            if self.controller is not None:
                lens = self._extended(self.controller, position, lens, packed)
        return Drafted(self._shortened(lens, None if pending is None else pending()), len(pieces))

    def _shortened(self, lens: IntArray, packed: NDArray[Any] | None) -> IntArray:
        if packed is None:
            return lens
        out_RO, _ = self.state.unpack(packed)
        shortened: IntArray = np.minimum(lens, out_RO[self.rows, self.state.columns.available])
        return shortened

    def _extended(self, controller: Controller, position: int, lens: IntArray, packed: NDArray[Any] | None) -> IntArray:
        signals = {}
        if packed is not None:
            _, signals_SRM = self.state.unpack(packed)
            drafting = lens > position
            for place, name in enumerate(DRAFT_SIGNALS):
                if name in self.signals:
                    signals[name] = np.where(drafting, signals_SRM[place, self.rows, position], np.nan)
        more = controller.extend(DraftProgress(position, self.rows, signals))
        return np.where(more, lens, np.minimum(lens, position + 1))


def trimmed(
    watch: DraftWatch, controller: Controller, gamma: int, drafts: Drafted, verify: int | IntArray | None
) -> int | IntArray | None:
    """What the controller makes of the drafts' signals: a new `Decision.verify`, or the old one."""
    signals = {}
    if watch.signals:
        _, signals_SRM = watch.state.unpack(watch.backend.read(watch.state.feedback_X))
        drafted_BG = np.arange(gamma) < drafts.lens[:, None]
        for place, name in enumerate(DRAFT_SIGNALS):
            if name in watch.signals:
                signals[name] = np.where(drafted_BG, signals_SRM[place, watch.rows, :gamma], np.nan)
    answer = controller.trim(DraftProgress(drafts.pieces - 1, watch.rows, signals))
    return verify if answer is None else answer
