"""Picks the bundle for a step, runs its pieces and reads the one packed copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import (
    DRAFT_SIGNALS,
    AcceptanceKind,
    Controller,
    Decision,
    FloatArray,
    IntArray,
    Needs,
    Signal,
    ceil_bucket,
)
from engine.catch_up import CatchUp
from engine.config import EngineConfig, context_buckets, doubling_buckets, token_buckets
from engine.drafters import DraftKey, NgramDrafter
from engine.drafting import Drafted, DraftWatch, trimmed
from engine.feedback import Feedback
from engine.graphs import Backend, Piece
from engine.index_upkeep import IndexUpkeep
from engine.judging import rule_of, rule_signals, sampler_of
from engine.prefill import Prefill, PrefillKey
from engine.signals import SIGNALS
from engine.step import DecodeStep, StepBundle, StepKey
from engine.tree import StaticTree, TreeKey, static_tree
from engine.tree_runner import TreeRunner

if TYPE_CHECKING:
    from engine.request_state import RequestState


def draft(bundle: StepBundle) -> None:
    """Run a bundle's draft pieces, in order."""
    for piece in bundle.draft:
        piece()


class StepRunner:
    """Owns the bundles. `drafts_fresh`: drafted ahead, and every live row's proposals follow its newest token."""

    def __init__(
        self, config: EngineConfig, step: DecodeStep, prefill: Prefill, backend: Backend, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._step = step
        self._prefill = prefill
        self.backend = backend
        self._clock = clock
        self._batches = doubling_buckets(config.max_batch)
        self._contexts = context_buckets(config.context_len, coarse=backend.records)
        self._tokens = token_buckets(step.logits_NV.shape[0])
        self._chunks = (doubling_buckets if backend.records else token_buckets)(config.prefill_chunk)
        self._bundles: dict[StepKey, StepBundle] = {}
        self._drafts: dict[tuple[DraftKey, int], Piece] = {}
        self._prefills: dict[PrefillKey, Piece] = {}
        self._catch_up: CatchUp | None = None
        if step.drafter is not None and step.drafter.when == "before":
            self._catch_up = CatchUp(config, step.drafter, step.state, backend)
        self.index: IndexUpkeep | None = None
        if isinstance(step.drafter, NgramDrafter):
            self.index = IndexUpkeep(config, step.drafter, step.state, backend)
        self._trees = None if step.trees is None else TreeRunner(config, step, step.trees, backend)
        self._out: IntArray = np.zeros(tuple(step.state.out_RO.shape), dtype=np.int64)
        self._signals: FloatArray = np.zeros(tuple(step.state.signals_SRM.shape))
        self._needs: Needs | None = None
        self.drafts_fresh = False

    @property
    def match_lens(self) -> IntArray:
        """Per row, as the newest packed copy has them."""
        matches: IntArray = self._out[:, self._step.state.columns.match_len]
        return matches

    @property
    def num_captured(self) -> int:
        """Pieces captured so far, by any backend."""
        grown = 0 if self._trees is None else self._trees.num_captured
        return 2 * len(self._bundles) + len(self._drafts) + len(self._prefills) + grown

    def prepare(self, needs: Needs) -> None:
        """Record the greedy bundles of every γ the policy can reach. Eager bundles cost nothing to make.

        A few requests may sit in high rows, so a wide bucket also gets what narrower ones need. Bundles that sample or
        report log-probabilities are recorded when first met.
        """
        if self._catch_up is not None:
            self._catch_up.drafter.prepare(needs.signals | rule_signals(needs.acceptances))
        before, self._needs = self._needs, needs
        try:
            self._record(needs)
        except BaseException:  # recording takes long enough for somebody to interrupt it
            self._needs = before
            raise

    def _record(self, needs: Needs) -> None:
        if not self.backend.records:
            return
        trees = [static_tree(tuple(tree.parents), len(tree.parents)) for tree in needs.trees if tree.parents]
        for batch in self._batches:
            gammas = {0}.union(*(needs.gammas.get(bucket, ()) for bucket in self._batches if bucket <= batch))
            shapes: list[tuple[int, TreeKey | None, int]] = [(gamma, None, gamma) for gamma in gammas]
            shapes += [(tree.depth, tree.key, tree.key.nodes) for tree in trees if max(gammas) >= tree.depth]
            for gamma, tree, widest in shapes:
                for tokens, context in product(self._widths(batch, widest), self._contexts):
                    key = self._served(StepKey(batch, gamma, tokens, context, tree=tree))
                    self._bundle(key)
                    self._record_before(key)

    def _record_before(self, key: StepKey) -> None:
        """The pieces that come before verification and that no bundle holds."""
        if key.tree is not None and self._trees is not None:
            self._trees.pieces(key)
        elif key.gamma and self._catch_up is not None:
            for first in self._catch_up.firsts(key.draft, key.gamma):
                self._draft_piece(first, 0)

    def _widths(self, batch: int, widest: int) -> Sequence[int]:
        """Packed widths on offer: all, where a bundle costs nothing, else the full rectangle and its halves."""
        if not self.backend.records:
            return self._tokens
        full = batch * (widest + 1)
        return sorted({max(full >> halvings, batch) for halvings in range(full.bit_length())})

    @property
    def widths(self) -> tuple[int, ...]:
        """Every packed width that some step of chains may run at, ascending."""
        gammas = range(self._step.state.max_gamma + 1)
        return tuple(sorted({width for batch in self._batches for g in gammas for width in self._widths(batch, g)}))

    @property
    def context_widths(self) -> tuple[int, ...]:
        """Every number of tokens a row that a recorded attention may read; none where it reads what each row holds."""
        return tuple(self._contexts) if self.backend.records else ()

    def timed(self, launch: Piece) -> float:
        """Seconds that a launch took; nan on a GPU, where it returns before the work is done."""
        started = self._clock()
        launch()
        return self._clock() - started if self._config.device == "cpu" else float("nan")

    def prefill(self, row: int, start: int, count: int) -> None:
        """Run one chunk of a row's tokens."""
        context = ceil_bucket(self._contexts, start + count)
        key = PrefillKey(ceil_bucket(self._chunks, count), context)
        # before a capture, whose trial run must write nothing else
        self._prefill.aim(self.backend.write, row, start, count)
        if key not in self._prefills:
            self._prefills[key] = self.backend.capture(lambda: self._prefill.run(key), [])
        self._prefills[key]()

    def stale(self, batch: Sequence[RequestState]) -> Mapping[str, IntArray] | None:
        """Per drafter, tokens that its cache would first have to catch up."""
        drafter = self._step.drafter
        if drafter is None:
            return None
        if self._catch_up is None:
            return {drafter.name: np.zeros(len(batch), dtype=np.int64)}
        return {drafter.name: self._catch_up.stale(batch)}

    def run(self, decision: Decision, batch: Sequence[RequestState], controller: Controller) -> Feedback:
        """One decode step as decided for the requests of `batch` (ascending rows).

        What steers the drafting or the lengths of chains does nothing to a tree.
        """
        rows = np.array([request.row for request in batch], dtype=np.int64)
        rows.flags.writeable = False  # policies are shown it between draft tokens
        tree = None if self._trees is None else self._trees.of(decision)
        shape = self._shape(decision, tree, batch)
        gamma = shape.gamma
        self._step.state.control.aim(self.backend.write, decision, rows)
        started = self._clock()
        if tree is None:
            drafts, verify = self._draft_before(shape, decision, rows, batch, controller)
        else:
            drafts, verify = self._grow_before(shape, tree, rows, batch), None
        key = self._sized(shape, drafts.packed(verify))
        self.drafts_fresh = False  # until this step has run to its end
        bundle = self._bundle(key)
        drafted = self._clock()
        bundle.verify()
        bundle.accept()
        verified = self._clock()
        if self._catch_up is None:
            draft(bundle)
        self._read(bool(key.signals))
        self.drafts_fresh = gamma > 0 and self._catch_up is None
        draft_s, verify_s = (drafted - started) + (self._clock() - verified), verified - drafted
        if not gamma:
            draft_s = float("nan")
        if self._config.device != "cpu":  # launches return before the work is done
            draft_s = verify_s = float("nan")
        feedback = self._feedback(key, tree, rows, batch, drafts.lens, (draft_s, verify_s))
        if gamma and self._catch_up is not None:
            # the last node of a path that stands may be a leaf, which a draft model never reads
            read = feedback.accepted if tree is None else (feedback.accepted - 1).clip(min=0)
            self._catch_up.settle(drafts.pieces, batch, read)
        if gamma and self.index is not None:
            self.index.settle(batch, feedback.accepted)
        return feedback

    def _draft_before(
        self,
        shape: StepKey,
        decision: Decision,
        rows: IntArray,
        batch: Sequence[RequestState],
        controller: Controller,
    ) -> tuple[Drafted, int | IntArray | None]:
        """See to it that the drafts are there; also says what of them to verify, as `Decision.verify` does."""
        if shape.gamma == 0:
            return Drafted(np.zeros(len(rows), dtype=np.int64), 0), None
        if self._catch_up is not None:
            reach = self._catch_up.available(shape.gamma, batch)
            self._catch_up.run(shape.batch, batch)
            first = self._draft_piece(self._catch_up.first(shape.draft, shape.gamma, batch), 0)
            return self._draft_stepwise(first, shape, decision, rows, reach, controller)
        available = self._drafted_ahead(shape, rows, batch)
        return Drafted(np.minimum(available, shape.gamma), 1), decision.verify

    def _drafted_ahead(self, shape: StepKey, rows: IntArray, batch: Sequence[RequestState]) -> IntArray:
        """Draft tokens that each request could verify, drafted now where that was not done ahead."""
        if not self.drafts_fresh:
            if self.index is not None:
                self.index.run(batch)
            draft(self._bundle(shape))
            self._read()
        available: IntArray = self._out[rows, self._step.state.columns.available]
        return available

    def _grow_before(self, shape: StepKey, tree: StaticTree, rows: IntArray, batch: Sequence[RequestState]) -> Drafted:
        """As `_draft_before`, with the rows' trees filled; counts nodes."""
        assert self._trees is not None, "whoever has a tree has what fills it"
        if self._catch_up is None:
            reach = self._drafted_ahead(shape, rows, batch)
        else:
            reach = self._catch_up.available(tree.depth, batch)
            self._catch_up.run(shape.batch, batch)
        drafts = self._trees.count(tree, reach, batch)
        # Recorded before the tree is there: a trial run moves what stands of one.
        self._bundle(self._sized(shape, drafts.packed(None)))
        self._trees.grow(shape, tree)
        return drafts

    def _draft_stepwise(
        self,
        first: Piece,
        shape: StepKey,
        decision: Decision,
        rows: IntArray,
        reach: IntArray,
        controller: Controller,
    ) -> tuple[Drafted, int | IntArray | None]:
        """Launch the draft pieces: all at once, unless a row may stop on the way."""
        count = self._step.draft_pieces(shape.gamma)
        pieces = [first, *[self._draft_piece(shape.draft, position) for position in range(1, count)]]
        stepwise, trims = (False, False) if self._needs is None else (self._needs.stepwise, self._needs.trim)
        drafts, verify = Drafted(reach, shape.gamma), decision.verify
        control, write = self._step.state.control, self.backend.write
        asked = controller if stepwise else None
        at_once = len(pieces) < shape.gamma
        watch = DraftWatch(self.backend, self._step.state, rows, shape.draft.signals, asked, at_once)
        if stepwise or decision.draft_stop is not None:
            drafts = watch.run(pieces, reach)
        else:
            for piece in pieces:
                piece()
        if trims:
            verify = trimmed(watch, controller, shape.gamma, drafts, verify)
            control.aim(write, replace(decision, verify=verify), rows)
        if stepwise:
            control.limit(write, rows, drafts.lens)
        return drafts, verify

    def _served(self, key: StepKey, trims: bool = False) -> StepKey:
        """The key with what the policy's needs add to it; to a tree's nothing."""
        needs, drafter = self._needs, self._step.drafter
        if key.tree is not None:
            return key
        if needs is None or drafter is None or not key.gamma:
            return replace(key, trimmed=trims and key.gamma > 0)
        signals = needs.signals & drafter.caps.signals - {"match_len"} | rule_signals({key.acceptance})
        return replace(key, signals=signals, trimmed=trims or needs.budget or needs.stepwise or needs.trim)

    def _shape(self, decision: Decision, tree: StaticTree | None, batch: Sequence[RequestState]) -> StepKey:
        """The key of the narrowest packed width; the true one depends on what the drafter finds."""
        gamma, widest = (tree.depth, tree.key.nodes) if tree else (decision.gamma, decision.gamma)
        longest = max(request.context_len for request in batch)
        sampler = sampler_of(batch)
        # Rows without drafts have but one verdict, and a tree's candidates are chosen without chance: one under every
        # lossless rule, and the only ones it knows.
        alike = not gamma or tree is not None or self._step.synthetic_M is not None
        bucket = ceil_bucket(self._batches, batch[-1].row + 1)
        key = StepKey(
            batch=bucket,
            gamma=gamma,
            verify_tokens=ceil_bucket(self._widths(bucket, widest), len(batch)),
            context=ceil_bucket(self._contexts, min(longest + widest + 1, self._config.context_len)),
            sampler=sampler,
            logprobs=any(request.request.sampling.logprobs is not None for request in batch),
            acceptance=AcceptanceKind.STANDARD if alike else rule_of(decision.acceptance.kind, batch, sampler),
            tree=tree.key if tree else None,
        )
        return self._served(key, trims=decision.verify is not None)

    def _sized(self, shape: StepKey, tokens: int) -> StepKey:
        return replace(shape, verify_tokens=ceil_bucket(self._widths(shape.batch, shape.widest), tokens))

    def bundle(self, key: StepKey) -> StepBundle:
        """One key's pieces, captured where they were not yet: what `run` runs, for measurements."""
        return self._bundle(key)

    def _bundle(self, key: StepKey) -> StepBundle:
        bundle = self._bundles.get(key)
        if bundle is None:
            step, mutable = self._step, self._step.mutable()
            verify = self.backend.capture(lambda: step.verify(key), mutable, [step.logits_NV])
            accept = self.backend.capture(lambda: step.accept(key), mutable, step.state.outputs())
            last = 0 if key.tree is not None and self._catch_up is not None else step.draft_pieces(key.gamma)
            own = range(self._catch_up is not None, last)  # what comes before depends on more
            drafts = tuple(self._draft_piece(key.draft, position) for position in own)
            bundle = self._bundles[key] = StepBundle(key, verify, accept, drafts)
        return bundle

    def _draft_piece(self, key: DraftKey, position: int) -> Piece:
        """Shared by all steps that draft alike."""
        if self._catch_up is None:  # copying looks at neither context nor sampler
            key = DraftKey(key.batch, 0)
        place = (key, position)
        if place not in self._drafts:
            step = self._step
            self._drafts[place] = self.backend.capture(lambda: step.draft(key, position), step.mutable())
        return self._drafts[place]

    def _read(self, signals: bool = False) -> None:
        """The one packed copy, up to the signals where nobody asked for them."""
        state = self._step.state
        if signals:
            self._out[:], self._signals[:] = state.unpack(self.backend.read(state.feedback_X))
        else:
            self._out[:] = self.backend.read(state.out_RO)

    def _reported(
        self, key: StepKey, rows: IntArray, drafted: IntArray, verified: IntArray
    ) -> dict[Signal, FloatArray]:
        """The signals asked for, nan where a token was not drafted or not verified."""
        place_G = np.arange(key.gamma)
        found: dict[Signal, FloatArray] = {}
        for plane, name in enumerate(SIGNALS):
            if name in key.signals:
                known = drafted if name in DRAFT_SIGNALS else verified
                values = self._signals[plane, rows, : key.gamma]
                found[name] = np.where(place_G < known[:, None], values, np.nan)
        return found

    def _feedback(
        self,
        key: StepKey,
        tree: StaticTree | None,
        rows: IntArray,
        batch: Sequence[RequestState],
        drafted: IntArray,
        seconds: tuple[float, float],
    ) -> Feedback:
        state, out = self._step.state, self._out[rows]
        values = ids = None
        if key.logprobs:
            values = self.backend.read(state.logprobs_RWX)[rows].tolist()
            vocab = self._step.logits_NV.shape[-1]
            ids = self.backend.read(state.logprob_ids_RWX)[rows, :, :vocab].tolist()
        return Feedback(
            gamma=key.gamma,
            tree=tree,
            tokens=out[:, : key.gamma + 1].tolist(),
            accepted=out[:, state.columns.accepted],
            verified=out[:, state.columns.verified],
            drafted=drafted,
            draft_s=seconds[0],
            verify_s=seconds[1],
            lossy=None if key.acceptance.lossless else out[:, state.columns.lossy],
            spent=None if key.acceptance.lossless else out.view(np.float64)[:, state.columns.spent],
            signals=self._reported(key, rows, drafted, out[:, state.columns.verified]) if key.signals else None,
            logprob_values=values,
            logprob_ids=ids,
            logprob_counts=tuple(request.request.sampling.logprobs for request in batch),
        )
