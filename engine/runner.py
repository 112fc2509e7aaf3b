"""Picks the bundle for a step, runs its pieces and reads the one packed copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adaptive.contract import AcceptanceKind, IntArray, Needs, ceil_bucket
from adaptive.requests import TokenLogprob
from engine.catch_up import CatchUp
from engine.config import EngineConfig, context_buckets, doubling_buckets, token_buckets
from engine.drafters import DraftKey, GrowKey
from engine.graphs import Backend, Piece
from engine.prefill import Prefill, PrefillKey
from engine.sampling.distribution import Sampler
from engine.step import DecodeStep, StepBundle, StepKey
from engine.tree import StaticTree, TreeKey, static_tree

if TYPE_CHECKING:
    from engine.request_state import RequestState


@dataclass(frozen=True, slots=True)
class Feedback:
    """One step's results on the host, per request of the batch. Seconds are nan where a piece did not run."""

    tokens: list[list[int]]
    accepted: IntArray
    verified: IntArray
    draft_s: float
    verify_s: float
    logprob_values: list[list[list[float]]] | None = None
    logprob_ids: list[list[list[int]]] | None = None
    logprob_counts: tuple[int | None, ...] = ()

    def logprobs(self, place: int, count: int) -> list[TokenLogprob] | None:
        """The first `count` tokens' log-probabilities, if that request asked for them."""
        if self.logprob_values is None or self.logprob_ids is None or self.logprob_counts[place] is None:
            return None
        top = self.logprob_counts[place]
        rows = zip(self.tokens[place][:count], self.logprob_values[place], self.logprob_ids[place], strict=False)
        return [
            TokenLogprob(token, values[0], tuple(zip(ids[:top], values[1:], strict=False)))
            for token, values, ids in rows
        ]


def draft(bundle: StepBundle) -> None:
    """Run a bundle's draft pieces, first position first."""
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
        self._drafts: dict[tuple[DraftKey | GrowKey, int], Piece] = {}
        self._prefills: dict[PrefillKey, Piece] = {}
        self._catch_up: CatchUp | None = None
        if step.drafter is not None and step.drafter.when == "before":
            self._catch_up = CatchUp(config, step.drafter, step.state, backend)
        self._out: IntArray = np.zeros(tuple(step.state.out_RO.shape), dtype=np.int64)
        self.drafts_fresh = False
        self._decided: StaticTree | None = None  # what the device's `shape_T` holds

    @property
    def match_lens(self) -> IntArray:
        """Per row, as the newest packed copy has them."""
        matches: IntArray = self._out[:, self._step.state.columns.match_len]
        return matches

    @property
    def num_captured(self) -> int:
        """Pieces captured so far, by any backend."""
        return 2 * len(self._bundles) + len(self._drafts) + len(self._prefills)

    def prepare(self, needs: Needs) -> None:
        """Record the greedy bundles of every γ the policy can reach. Eager bundles cost nothing to make.

        A few requests may sit in high rows, so a wide bucket also gets what narrower ones need. Bundles that sample or
        report log-probabilities are recorded when first met.
        """
        if not self.backend.records:
            return
        trees = [static_tree(tuple(tree.parents), len(tree.parents)) for tree in needs.trees if tree.parents]
        for batch in self._batches:
            gammas = {0}.union(*(needs.gammas.get(bucket, ()) for bucket in self._batches if bucket <= batch))
            shapes: list[tuple[int, TreeKey | None, int]] = [(gamma, None, gamma) for gamma in gammas]
            shapes += [(tree.depth, tree.key, tree.key.nodes) for tree in trees if tree.depth in gammas]
            for gamma, tree, widest in shapes:
                for tokens, context in product(self._widths(batch, widest), self._contexts):
                    self._bundle(StepKey(batch, gamma, tokens, context, tree=tree))

    def _widths(self, batch: int, widest: int) -> Sequence[int]:
        """Packed widths on offer: all, where a bundle costs nothing, else the full rectangle and its halves."""
        if not self.backend.records:
            return self._tokens
        full = batch * (widest + 1)
        return sorted({max(full >> halvings, batch) for halvings in range(full.bit_length())})

    def prefill(self, row: int, start: int, count: int) -> None:
        """Run one chunk of a row's prompt."""
        context = ceil_bucket(self._contexts, start + count)
        key = PrefillKey(ceil_bucket(self._chunks, count), context)
        # before a capture, whose trial run must write nothing else
        self._prefill.aim(self.backend.write, row, start, count)
        if key not in self._prefills:
            self._prefills[key] = self.backend.capture(lambda: self._prefill.run(key), [])
        self._prefills[key]()

    def run(
        self, gamma: int, acceptance: AcceptanceKind, batch: Sequence[RequestState], tree: StaticTree | None = None
    ) -> Feedback:
        """One decode step at the decided γ for the requests of `batch` (ascending rows); γ is the depth of a tree."""
        rows = np.array([request.row for request in batch], dtype=np.int64)
        shape = self._shape(gamma, acceptance, batch, tree.key if tree else None)
        started = self._clock()
        key = self._grow_before(shape, tree, rows, batch) if tree else self._draft_before(shape, rows, batch)
        self.drafts_fresh = False  # until this step has run to its end
        bundle = self._bundle(key)
        drafted = self._clock()
        bundle.verify()
        bundle.accept()
        verified = self._clock()
        if self._catch_up is None:
            draft(bundle)
        self._read()
        self.drafts_fresh = gamma > 0 and self._catch_up is None
        draft_s, verify_s = (drafted - started) + (self._clock() - verified), verified - drafted
        if not gamma:
            draft_s = float("nan")
        if self._config.device != "cpu":  # launches return before the work is done
            draft_s = verify_s = float("nan")
        feedback = self._feedback(key, rows, batch, draft_s, verify_s)
        if gamma and self._catch_up is not None:
            # the last node of a path that stands may be a leaf, which a draft model never reads
            read = feedback.accepted if tree is None else (feedback.accepted - 1).clip(min=0)
            self._catch_up.settle(gamma, batch, read)
        return feedback

    def _draft_before(self, shape: StepKey, rows: IntArray, batch: Sequence[RequestState]) -> StepKey:
        """See to it that the drafts are there; returns the key with the packed width they take."""
        if shape.gamma == 0:
            return shape
        if self._catch_up is not None:
            available = self._catch_up.available(shape.gamma, batch)
            key = self._sized(shape, len(rows) + int(available.sum()))
            bundle = self._bundle(key)
            self._catch_up.run(shape.batch, batch)
            draft(bundle)
            return key
        if not self.drafts_fresh:
            draft(self._bundle(shape))
            self._read()
        available = self._out[rows, self._step.state.columns.available]
        return self._sized(shape, len(rows) + int(np.minimum(available, shape.gamma).sum()))

    def _grow_before(self, shape: StepKey, tree: StaticTree, rows: IntArray, batch: Sequence[RequestState]) -> StepKey:
        """As `_draft_before`, with the rows' trees filled."""
        assert self._step.trees is not None, "the engine offers no trees otherwise"
        if tree is not self._decided:
            self._step.trees.decide(self.backend.write, tree)
            self._decided = tree
        limit = capacity = self._config.context_len
        if self._catch_up is not None:
            reach, limit = self._catch_up.available(tree.depth, batch), self._catch_up.limit
        else:
            if not self.drafts_fresh:
                draft(self._bundle(shape))
                self._read()
            reach = self._out[rows, self._step.state.columns.available]
        slots = [min(capacity, limit + 1) - request.context_len for request in batch]
        nodes = sum(map(tree.count, reach.tolist(), slots))
        key = self._sized(shape, len(rows) + nodes)
        bundle = self._bundle(key)
        if self._catch_up is not None:
            self._catch_up.run(shape.batch, batch)
        for piece in bundle.grow:
            piece()
        return key

    def _shape(
        self, gamma: int, acceptance: AcceptanceKind, batch: Sequence[RequestState], tree: TreeKey | None
    ) -> StepKey:
        """The key of the narrowest packed width; the true one depends on what the drafter finds."""
        longest = max(request.context_len for request in batch)
        samplings = [request.request.sampling for request in batch]
        sampler = Sampler.GREEDY
        if any(not sampling.greedy for sampling in samplings):
            filtered = any(sampling.top_k or sampling.top_p < 1 for sampling in samplings if not sampling.greedy)
            sampler = Sampler.FILTERED if filtered else Sampler.PLAIN
        bucket = ceil_bucket(self._batches, batch[-1].row + 1)
        widest = tree.nodes if tree else gamma
        return StepKey(
            batch=bucket,
            gamma=gamma,
            verify_tokens=ceil_bucket(self._widths(bucket, widest), len(batch)),
            context=ceil_bucket(self._contexts, min(longest + widest + 1, self._config.context_len)),
            sampler=sampler,
            logprobs=any(sampling.logprobs is not None for sampling in samplings),
            # Greedy rows and rows without drafts have but one verdict under every lossless rule.
            # So has a tree whose candidates were chosen without chance.
            acceptance=acceptance if gamma and not tree and sampler is not Sampler.GREEDY else AcceptanceKind.STANDARD,
            tree=tree,
        )

    def _sized(self, shape: StepKey, tokens: int) -> StepKey:
        return replace(shape, verify_tokens=ceil_bucket(self._widths(shape.batch, shape.widest), tokens))

    def _bundle(self, key: StepKey) -> StepBundle:
        bundle = self._bundles.get(key)
        if bundle is None:
            step, mutable = self._step, self._step.mutable()
            verify = self.backend.capture(lambda: step.verify(key), mutable, [step.logits_NV])
            accept = self.backend.capture(lambda: step.accept(key), mutable, step.state.outputs())
            grown, pieces = self._grow_pieces(key), step.draft_pieces(key.gamma)
            if grown and self._catch_up is not None:
                pieces = 0
            drafts = tuple(self._draft_piece(key, position) for position in range(pieces))
            bundle = self._bundles[key] = StepBundle(key, verify, accept, drafts, grown)
        return bundle

    def _grow_pieces(self, key: StepKey) -> tuple[Piece, ...]:
        """Shared by all keys that grow the same kind of tree."""
        if key.tree is None:
            return ()
        step, grow = self._step, GrowKey(key.batch, key.context, key.tree)
        for level in range(step.grow_pieces(key.tree)):
            if (grow, level) not in self._drafts:
                self._drafts[grow, level] = self._grow_piece(grow, level)
        return tuple(self._drafts[grow, level] for level in range(step.grow_pieces(key.tree)))

    def _grow_piece(self, key: GrowKey, level: int) -> Piece:
        step = self._step
        return self.backend.capture(lambda: step.grow(key, level), step.mutable())

    def _draft_piece(self, key: StepKey, position: int) -> Piece:
        """Shared by all keys that draft alike."""
        place = (key.draft, position)
        if place not in self._drafts:
            step = self._step
            self._drafts[place] = self.backend.capture(lambda: step.draft(key, position), step.mutable())
        return self._drafts[place]

    def _read(self) -> None:
        """The one packed copy."""
        self._out[:] = self.backend.read(self._step.state.out_RO)

    def _feedback(
        self, key: StepKey, rows: IntArray, batch: Sequence[RequestState], draft_s: float, verify_s: float
    ) -> Feedback:
        state, out = self._step.state, self._out[rows]
        values = ids = None
        if key.logprobs:
            values = self.backend.read(state.logprobs_RWX)[rows].tolist()
            vocab = self._step.logits_NV.shape[-1]
            ids = self.backend.read(state.logprob_ids_RWX)[rows, :, :vocab].tolist()
        return Feedback(
            tokens=out[:, : key.gamma + 1].tolist(),
            accepted=out[:, state.columns.accepted],
            verified=out[:, state.columns.verified],
            draft_s=draft_s,
            verify_s=verify_s,
            logprob_values=values,
            logprob_ids=ids,
            logprob_counts=tuple(request.request.sampling.logprobs for request in batch),
        )
