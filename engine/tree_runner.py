"""The host's side of trees: the shape that a decision asks for, and the pieces that fill it for every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import Decision, IntArray
from engine.config import EngineConfig
from engine.drafters import GrowKey
from engine.drafting import Drafted
from engine.graphs import Backend, Piece
from engine.step import DecodeStep, StepKey
from engine.tree import StaticTree, TreeState, static_tree

if TYPE_CHECKING:
    from engine.request_state import RequestState


class TreeRunner:
    """Counts every row's nodes without looking at the device."""

    def __init__(self, config: EngineConfig, step: DecodeStep, trees: TreeState, backend: Backend) -> None:
        self._step = step
        self._trees = trees
        self._backend = backend
        self._space = config.context_len
        if step.drafter is not None and step.drafter.when == "before":
            self._space = min(self._space, step.drafter.limit + 1)  # the deepest nodes are never read by the drafter
        self._pieces: dict[tuple[GrowKey, int], Piece] = {}
        self._decided: StaticTree | None = None  # what the device's `shape_T` holds

    @property
    def num_captured(self) -> int:
        return len(self._pieces)

    def of(self, decision: Decision) -> StaticTree | None:
        """What the decision's γ leaves of its tree; None for a chain."""
        if decision.tree is None or decision.tree.parents is None or not decision.gamma:
            return None
        return static_tree(tuple(decision.tree.parents), decision.gamma)

    def count(self, tree: StaticTree, reach: IntArray, batch: Sequence[RequestState]) -> Drafted:
        """How many nodes each row's tree has, of which `reach` draft tokens may be emitted."""
        spaces = [self._space - request.context_len for request in batch]
        return Drafted(np.array([*map(tree.count, reach.tolist(), spaces)], dtype=np.int64), tree.depth)

    def grow(self, shape: StepKey, tree: StaticTree) -> None:
        """Fill the tree for all rows."""
        if tree is not self._decided:
            self._decided = None  # in case the write is interrupted
            self._trees.decide(self._backend.write, tree)
            self._decided = tree
        for piece in self.pieces(shape):
            piece()

    def pieces(self, shape: StepKey) -> list[Piece]:
        """Shared by all steps that grow the same kind of tree."""
        if shape.tree is None:
            return []
        key = GrowKey(shape.batch, shape.context, shape.tree)
        return [self._piece(key, level) for level in range(self._step.grow_pieces(shape.tree))]

    def _piece(self, key: GrowKey, level: int) -> Piece:
        place = (key, level)
        if place not in self._pieces:
            step = self._step
            self._pieces[place] = self._backend.capture(lambda: step.grow(key, level), step.mutable())
        return self._pieces[place]
