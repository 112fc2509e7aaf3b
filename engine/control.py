"""What a decision sets on the device without a graph of its own: lengths, budget, thresholds, weights, parameters.

Nearly all of it lies in two flat buffers, one of integers and one of floats, so that a step whose decision brings
something new costs two writes and any other step none. The tables of one rule, larger and seldom new, are a third.
Shapes: R rows, M largest γ, S signals, K parameters of a rule, T points of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.contract import DRAFT_SIGNALS, TABLE, Acceptance, Decision, FloatArray, IntArray
from engine.graphs import Write
from engine.sampling.rules import POINTS

PASSES_ABOVE = frozenset({"entropy"})
"""Signals that stop a row's drafting above the threshold; the others do so below it."""
CONFIDENCE_SIGNALS = (*DRAFT_SIGNALS, "match_len")
"""What survival can be told from, in the order of `weight_SM`."""
MAX_PARAMS = 4  # in the order of `AcceptanceKind.params`; the last says whether the row has a table
NO_BUDGET = 1 << 40

Flat = TypeVar("Flat", Tensor, NDArray[Any])


class StepControl:
    """Device buffers, and the host's picture of what stands in them.

    `budget_1` counts a batch's packed tokens, roots included; `limit_R` the draft tokens a row may verify. A row stops
    drafting when a signal passes `stop_SR` (planes as in `DRAFT_SIGNALS`). `weight_SM`, `bias_M` and `target_R` say who
    gets the budget (`engine/split.py`); `params_KR` and `table_RT` are the acceptance rule's.
    """

    def __init__(self, rows: int, max_gamma: int, device: str) -> None:
        self._max_gamma = max_gamma
        self._int_shapes = ((1,), (rows,))
        signals = (len(DRAFT_SIGNALS), len(CONFIDENCE_SIGNALS))
        self._float_shapes = ((signals[0], rows), (signals[1], max_gamma), (max_gamma,), (rows,), (MAX_PARAMS, rows))
        self._plain = self._defaults()
        self._ints, self._floats = self._plain
        self.ints_X = torch.tensor(self._ints, device=device)
        self.floats_X = torch.tensor(self._floats, device=device)
        self._table: FloatArray = np.zeros((rows, POINTS))
        self.table_RT = torch.tensor(self._table, device=device)
        self.budget_1, self.limit_R = _parts(self.ints_X, self._int_shapes)
        self.stop_SR, self.weight_SM, self.bias_M, self.target_R, self.params_KR = _parts(
            self.floats_X, self._float_shapes
        )

    def aim(self, write: Write, decision: Decision, rows: IntArray) -> None:
        """Make the decision's numbers those of the next step. Its arrays go by place in `rows`."""
        ints, floats = self._plain
        if _steers(decision):
            ints, floats = ints.copy(), floats.copy()
            self._fill_ints(ints, decision, rows)
            self._fill_floats(floats, decision, rows)
        self._send(write, ints, floats)
        if TABLE in decision.acceptance.params:
            self._send_table(write, decision.acceptance, rows)

    def limit(self, write: Write, rows: IntArray, lens: IntArray) -> None:
        """Lower the draft tokens that each of `rows` may verify."""
        ints = self._ints.copy()
        _, limit_R = _parts(ints, self._int_shapes)
        limit_R[rows] = np.minimum(limit_R[rows], lens)
        self._send(write, ints, self._floats)

    def forget(self) -> None:
        """A step was interrupted: what the device holds is not known, so that the next decision is written whole."""
        self._ints, self._floats, self._table = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 0))

    def _send(self, write: Write, ints: IntArray, floats: NDArray[np.float64]) -> None:
        if ints is not self._ints and not np.array_equal(ints, self._ints):
            write(self.ints_X, ints)
        if floats is not self._floats and not np.array_equal(floats, self._floats):
            write(self.floats_X, floats)
        self._ints, self._floats = ints, floats

    def _send_table(self, write: Write, acceptance: Acceptance, rows: IntArray) -> None:
        table = self._table.copy() if self._table.size else np.zeros(tuple(self.table_RT.shape))
        table[rows] = _resampled(np.asarray(acceptance.params[TABLE]))
        if not np.array_equal(table, self._table):
            write(self.table_RT, table)
        self._table = table

    def _defaults(self) -> tuple[IntArray, NDArray[np.float64]]:
        ints: IntArray = np.zeros(sum(map(prod, self._int_shapes)), dtype=np.int64)
        budget_1, limit_R = _parts(ints, self._int_shapes)
        budget_1[:], limit_R[:] = NO_BUDGET, self._max_gamma
        floats = np.zeros(sum(map(prod, self._float_shapes)))
        stop_SR, *_, target_R, _ = _parts(floats, self._float_shapes)
        for place, name in enumerate(DRAFT_SIGNALS):
            stop_SR[place] = np.inf if name in PASSES_ABOVE else -np.inf
        target_R[:] = -np.inf
        return ints, floats

    def _fill_ints(self, ints: IntArray, decision: Decision, rows: IntArray) -> None:
        budget_1, limit_R = _parts(ints, self._int_shapes)
        if isinstance(decision.verify, np.ndarray):
            limit_R[rows] = decision.verify.clip(0, self._max_gamma)
        elif decision.verify is not None:
            budget_1[0] = decision.verify

    def _fill_floats(self, floats: NDArray[np.float64], decision: Decision, rows: IntArray) -> None:
        stop_SR, weight_SM, bias_M, target_R, params_KR = _parts(floats, self._float_shapes)
        if decision.draft_stop is not None:
            stop_SR[DRAFT_SIGNALS.index(decision.draft_stop.signal), rows] = decision.draft_stop.threshold
        if decision.confidence is not None:
            place = CONFIDENCE_SIGNALS.index(decision.confidence.signal)
            weight_SM[place, : decision.gamma] = decision.confidence.weight
            bias_M[: decision.gamma] = decision.confidence.bias
        if decision.row_target is not None:
            target_R[rows] = decision.row_target
        params = decision.acceptance.params
        for place, (name, default) in enumerate(decision.acceptance.kind.params.items()):
            params_KR[place, rows] = params.get(name, default)
        params_KR[-1, rows] = TABLE in params


def _steers(decision: Decision) -> bool:
    levers = (decision.verify, decision.draft_stop, decision.confidence, decision.row_target)
    return any(lever is not None for lever in levers) or not decision.acceptance.lossless


def _resampled(table_BK: FloatArray) -> FloatArray:
    """Tables of K values as tables of `POINTS`, read linearly in between."""
    last = table_BK.shape[1] - 1
    if last == POINTS - 1:
        return table_BK
    place_T = np.linspace(0.0, last, POINTS)
    low_T = np.minimum(place_T.astype(np.int64), last - 1)
    table: FloatArray = table_BK[:, low_T] + (place_T - low_T) * (table_BK[:, low_T + 1] - table_BK[:, low_T])
    return table


def _parts(flat: Flat, shapes: Sequence[Sequence[int]]) -> Iterator[Flat]:
    """Views of a flat buffer, one after another."""
    ends = np.cumsum([0, *map(prod, shapes)]).tolist()
    for shape, (start, end) in zip(shapes, pairwise(ends), strict=True):
        yield flat[start:end].reshape(tuple(shape))
