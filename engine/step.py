"""The decode step: draft, verify, accept - captured pieces over persistent buffers.

Static shapes, no look at the host. The key fixes every shape; which row gets how many tokens, which draft tokens stand
and what is drawn are decided on the device. A drafter that copies text drafts ahead, right after acceptance, so that
the one packed copy to the host also says how many tokens each row can verify next. A draft model drafts before
verification, in one piece per position.

Shapes: B batch bucket, N packed tokens, G = γ, W = γ + 1, C context bucket, V vocabulary, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from adaptive.requests import MAX_LOGPROBS
from engine.attention import PackedAttention, causal_mask
from engine.batch import RowState
from engine.drafters import Drafter, DraftKey, GrowKey, TreeDrafter, features_of
from engine.features import forward
from engine.graphs import Piece
from engine.kv import KVCache
from engine.layout import PackedLayout, pack
from engine.models.decoder import Decoder
from engine.sampling.distribution import Sampler, choose, distribution
from engine.sampling.lossy import Drawn, Told, verify_lossy
from engine.sampling.randomness import ACCEPT, CHOOSE, SYNTHETIC, uniform
from engine.sampling.rules import RULES
from engine.sampling.tree import first_children, longest, walk
from engine.sampling.verify import count_accepted, verify_block, verify_greedy, verify_standard
from engine.signals import SIGNALS, note_target
from engine.split import verify_lens
from engine.tree import TreeKey, TreeState
from engine.tree_links import TreeLinks
from engine.tree_step import forward_tree, pack_tree, take_path


@dataclass(frozen=True, slots=True)
class StepKey:
    """Everything that fixes a shape or a branch of a step. `verify_tokens` counts packed tokens, roots included.

    `signals` are those that the step leaves for the host. A `trimmed` step keeps to the decision's budget and lengths.
    """

    batch: int
    gamma: int
    verify_tokens: int
    context: int
    sampler: Sampler = Sampler.GREEDY
    logprobs: bool = False
    acceptance: AcceptanceKind = AcceptanceKind.STANDARD
    signals: frozenset[Signal] = frozenset()
    trimmed: bool = False
    tree: TreeKey | None = None  # γ is then its depth

    @property
    def draft(self) -> DraftKey:
        """The part that drafting depends on."""
        return DraftKey(self.batch, self.context, self.sampler, self.signals - {"target_entropy"})

    @property
    def widest(self) -> int:
        """Draft tokens that a row verifies at most."""
        return self.gamma if self.tree is None else self.tree.nodes


@dataclass(frozen=True, slots=True)
class StepBundle:
    """The captured pieces of one key, swapped as a whole. Plain decode (γ = 0) has nothing to draft.

    Where drafting comes before verification, what depends on more than the key is not among them: its first piece, and
    all that fill a tree.
    """

    key: StepKey
    verify: Piece
    accept: Piece
    draft: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Builds the pieces of any key over one set of buffers. `logits_NV` carries a step from verify to accept.

    `synthetic_M`, where given, overrides the verdict: the chance of each draft position, once those before it stand.
    """

    decoder: Decoder
    kv: KVCache
    state: RowState
    drafter: Drafter | None
    logits_NV: Tensor
    synthetic_M: Tensor | None = None
    trees: TreeState | None = None

    def verify(self, key: StepKey) -> None:
        """One target forward over the packed roots and draft tokens; leaves logits."""
        if key.tree is None:
            self._choose_lens(key)
            hidden_NE = self._forward_chains(key, self._layout(key))
        else:
            layout = self._layout(key)
            hidden_NE = forward_tree(
                self.decoder, self.kv, self.state, self._forest, key.tree, layout, key.batch, key.context
            )
        self.logits_NV[: key.verify_tokens].copy_(self.decoder.logits(hidden_NE))

    def _forward_chains(self, key: StepKey, layout: PackedLayout) -> Tensor:
        """The target's hidden states `[N, E]`."""
        state = self.state
        root_N = state.lens_R.index_select(0, layout.row_N) - 1
        position_N = root_N + layout.offset_N
        slot_N = torch.where(layout.row_N < key.batch, layout.row_N * state.capacity + position_N, self.kv.trash_slot)
        config = self.decoder.config
        mask = causal_mask(
            position_N[layout.grid_BW],
            key.context,
            config.sliding_window,
            config.num_heads // config.num_kv_heads,
            self.decoder.dtype,
        )
        attention = PackedAttention(self.kv, slot_N, layout.grid_BW, layout.place_N, mask)
        tokens_N = self._tokens(key, layout, root_N)
        return forward(self.decoder, features_of(self.drafter), tokens_N, position_N, attention)

    def _choose_lens(self, key: StepKey) -> None:
        """How many draft tokens each row verifies: all there are, or its share."""
        state, batch = self.state, key.batch
        if key.trimmed:
            lens_B = verify_lens(state, batch, key.gamma, key.signals)
        else:
            lens_B = state.available(batch).clamp(max=key.gamma)
        state.verify_lens_R[:batch].copy_(lens_B)

    @property
    def _forest(self) -> TreeState:
        assert self.trees is not None, "a key with a tree is made only where trees were asked for"
        return self.trees

    def _layout(self, key: StepKey) -> PackedLayout:
        if key.tree is not None:
            return pack_tree(self.state, self._forest, key.batch, key.tree, key.verify_tokens)
        return pack(self.state, key.batch, key.gamma, key.verify_tokens)

    def _tokens(self, key: StepKey, layout: PackedLayout, root_N: Tensor) -> Tensor:
        """The root where the offset is 0, else the draft token before it."""
        roots_N = self.state.history_RP[layout.row_N, root_N]
        if key.gamma == 0:
            return roots_N
        drafts_N = self.state.drafts_RM[layout.row_N, (layout.offset_N - 1).clamp(min=0)]
        return torch.where(layout.offset_N == 0, roots_N, drafts_N)

    def accept(self, key: StepKey) -> None:
        """Judge the draft tokens, append what stands and the token after it, and fill the packed feedback."""
        layout = self._layout(key)
        logits_NV = self.logits_NV[: key.verify_tokens]
        if key.tree is not None:
            self._accept_tree(key, key.tree, layout, logits_NV)
            return
        drafts_BG = self.state.drafts_RM[: key.batch, : key.gamma]
        if key.signals:
            note_target(self.state, key.signals, logits_NV, layout.grid_BW, self._plain_draft_probs(key))
        if self.synthetic_M is not None:
            accepted_B, emitted_BW = self._override(key, layout, logits_NV, drafts_BG, self.synthetic_M)
        elif not key.acceptance.lossless:
            accepted_B, emitted_BW = self._relax(key, layout, logits_NV, drafts_BG)
        elif key.sampler is Sampler.GREEDY:
            accepted_B, emitted_BW = verify_greedy(logits_NV.argmax(-1), layout.grid_BW, drafts_BG, layout.verified_B)
        else:
            accepted_B, emitted_BW = self._sample(key, layout, logits_NV, drafts_BG)
        if key.logprobs:
            self._logprobs(key, logits_NV, layout.grid_BW, emitted_BW)
        self._append(key, emitted_BW, accepted_B, layout.verified_B)

    def _sample(self, key: StepKey, layout: PackedLayout, logits: Tensor, drafts_BG: Tensor) -> tuple[Tensor, Tensor]:
        probs_NV = self._probs(key, layout.row_N, logits)
        accept_BG = self._uniforms(key, key.gamma, ACCEPT)
        choose_B = self._uniforms(key, 1, CHOOSE).squeeze(1)
        verify = verify_block if key.acceptance is AcceptanceKind.BLOCK else verify_standard
        q_BGV = self._draft_probs(key)
        return verify(probs_NV, layout.grid_BW, drafts_BG, layout.verified_B, accept_BG, choose_B, q_BGV)

    def _relax(self, key: StepKey, layout: PackedLayout, logits: Tensor, drafts_BG: Tensor) -> tuple[Tensor, Tensor]:
        """By a rule that is not exact where rows allow it; fills the meters."""
        state, batch = self.state, key.batch
        drawn = Drawn(
            logits_NV=logits,
            probs_NV=self._probs(key, layout.row_N, logits),
            grid_BW=layout.grid_BW,
            drafts_BG=drafts_BG,
            verified_B=layout.verified_B,
            q_BGV=None if key.sampler is Sampler.GREEDY else self._draft_probs(key),
            greedy_B=state.temperature_R[:batch] == 0,
            allow_B=state.allow_lossy_R[:batch] > 0,
            accept_BG=self._uniforms(key, key.gamma, ACCEPT),
            choose_B=self._uniforms(key, 1, CHOOSE).squeeze(1),
        )
        distance_BG = state.signals_SRM[SIGNALS.index("js"), :batch, : key.gamma]
        told = Told(
            params_KB=state.control.params_KR[:, :batch],
            table_BT=state.control.table_RT[:batch],
            draft_BGV=self._plain_draft_probs(key),
            distance_BG=distance_BG if "js" in key.signals else None,
        )
        verdict = verify_lossy(RULES[key.acceptance], drawn, told)
        state.out_RO[:batch, state.columns.lossy].copy_(verdict.lossy_B)
        state.spent_R[:batch].copy_(verdict.spent_B)
        return verdict.accepted_B, verdict.emitted_BW

    def _accept_tree(self, key: StepKey, shape: TreeKey, layout: PackedLayout, logits_NV: Tensor) -> None:
        """Append the path that stands and the token after it, and bring its keys and values together."""
        links = self._forest.links(key.batch, shape)
        tokens_BT = self._forest.tokens_RT[: key.batch, : shape.nodes]
        node_B, next_B = self._judge_tree(key, layout, links, tokens_BT, logits_NV)
        path = take_path(node_B, next_B, tokens_BT, links, shape.depth)
        if key.logprobs:
            self._logprobs(key, logits_NV, layout.grid_BW.gather(1, path.offset_BP), path.emitted_BP)
        self.kv.move_path(self.state.lens_R[: key.batch] - 1, path.offset_BP, path.accepted_B)
        if isinstance(self.drafter, TreeDrafter):
            self.drafter.keep_path(self.state, path.offset_BP, path.accepted_B)
        self._append(key, path.emitted_BP, path.accepted_B, layout.verified_B)

    def _judge_tree(
        self, key: StepKey, layout: PackedLayout, links: TreeLinks, tokens_BT: Tensor, logits_NV: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The offset of the last node that stands, and the token after it, `[B]` each. Every lossless rule is one."""
        grid_BW, count_B = layout.grid_BW, layout.verified_B
        if self.synthetic_M is not None:
            stands_BG = self._uniforms(key, key.gamma, SYNTHETIC) < self.synthetic_M[: key.gamma]
            node_B = first_children(stands_BG, count_B, links)
            place_B = grid_BW.gather(1, node_B.unsqueeze(1)).squeeze(1)
            return node_B, self._targets_own(key, layout.row_N, logits_NV, place_B)
        if key.sampler is Sampler.GREEDY:
            target_BW = logits_NV.argmax(-1)[grid_BW]
            node_B = longest(target_BW, tokens_BT, count_B, links)
            return node_B, target_BW.gather(1, node_B.unsqueeze(1)).squeeze(1)
        probs_NV = self._probs(key, layout.row_N, logits_NV)
        accept_BX = self._uniforms(key, links.child_BWK.shape[2] * key.gamma, ACCEPT)
        node_B, left_BV = walk(probs_NV, grid_BW, tokens_BT, count_B, accept_BX, links)
        return node_B, choose(left_BV, self._uniforms(key, 1, CHOOSE).squeeze(1))

    def _draft_probs(self, key: StepKey) -> Tensor | None:
        if self.drafter is None or self.drafter.when == "ahead" or key.gamma == 0:
            return None
        return self.drafter.q_RMV[: key.batch, : key.gamma]

    def _plain_draft_probs(self, key: StepKey) -> Tensor | None:
        if self.drafter is None or self.drafter.when == "ahead" or self.drafter.plain_RMV is None:
            return None
        return self.drafter.plain_RMV[: key.batch, : key.gamma]

    def _override(
        self, key: StepKey, layout: PackedLayout, logits_NV: Tensor, drafts_BG: Tensor, chance_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Accept at the chances asked for, then the target's own token.

        Every packed token is looked at as the real rule would, since the cost of a step shall stay.
        """
        stands_BG = self._uniforms(key, key.gamma, SYNTHETIC) < chance_M[: key.gamma]
        accepted_B = count_accepted(stands_BG, layout.verified_B)
        accepted_B1 = accepted_B.unsqueeze(1)
        final_B = layout.grid_BW.gather(1, accepted_B1).squeeze(1)
        next_B1 = self._targets_own(key, layout.row_N, logits_NV, final_B).unsqueeze(1)
        return accepted_B, torch.cat([drafts_BG, next_B1], 1).scatter(1, accepted_B1, next_B1)

    def _targets_own(self, key: StepKey, row_N: Tensor, logits_NV: Tensor, place_B: Tensor) -> Tensor:
        """The target's token after each of the packed places, whatever was drafted `[B]`."""
        if key.sampler is Sampler.GREEDY:
            return logits_NV.argmax(-1)[place_B]
        probs_NV = self._probs(key, row_N, logits_NV)
        return choose(probs_NV.index_select(0, place_B), self._uniforms(key, 1, CHOOSE).squeeze(1))

    def _probs(self, key: StepKey, row_N: Tensor, logits_NV: Tensor) -> Tensor:
        settings = (self.state.temperature_R, self.state.top_k_R, self.state.top_p_R)
        temperature_N, top_k_N, top_p_N = (buffer.index_select(0, row_N) for buffer in settings)
        return distribution(logits_NV, temperature_N, top_k_N, top_p_N, filtered=key.sampler is Sampler.FILTERED)

    def _uniforms(self, key: StepKey, count: int, stream: int) -> Tensor:
        """One number per row and place `[B, count]`."""
        seeds_B1, steps_B1 = (buffer[: key.batch].unsqueeze(1) for buffer in (self.state.seeds_R, self.state.steps_R))
        return uniform(seeds_B1, steps_B1, torch.arange(count, device=seeds_B1.device), stream)

    def _logprobs(self, key: StepKey, logits_NV: Tensor, grid_BW: Tensor, emitted_BW: Tensor) -> None:
        """Log-probabilities under the target itself (temperature 1, unfiltered) of each emitted token and the best."""
        logprobs_NV = logits_NV.log_softmax(-1)
        best = logprobs_NV.topk(min(MAX_LOGPROBS, logprobs_NV.shape[-1]), dim=-1)
        ids_RWX = self.state.logprob_ids_RWX[: key.batch, : key.gamma + 1, : best.indices.shape[-1]]
        values_RWX = self.state.logprobs_RWX[: key.batch, : key.gamma + 1]
        ids_RWX.copy_(best.indices[grid_BW])
        values_RWX[..., 0].copy_(logprobs_NV[grid_BW, emitted_BW])
        values_RWX[..., 1 : best.values.shape[-1] + 1].copy_(best.values[grid_BW])

    def _append(self, key: StepKey, emitted_BW: Tensor, accepted_B: Tensor, verified_B: Tensor) -> None:
        state, batch = self.state, key.batch
        count_B = (accepted_B + 1) * state.live_R[:batch]
        place_W = torch.arange(key.gamma + 1, device=count_B.device)
        row_B1 = torch.arange(batch, device=count_B.device).unsqueeze(1)
        slot_BW = row_B1 * state.capacity + state.lens_R[:batch].unsqueeze(1) + place_W
        slot_BW = torch.where(place_W < count_B.unsqueeze(1), slot_BW, state.rows * state.capacity)
        state.history_RP.view(-1).index_copy_(0, slot_BW.flatten(), emitted_BW.flatten())
        state.lens_R[:batch] += count_B
        state.budget_R[:batch] -= count_B
        state.steps_R[:batch] += state.live_R[:batch]
        if self.drafter is not None and self.drafter.when == "before":
            # From the first rejected token on, a draft model's keys and values are void.
            state.cached_R[:batch].copy_(torch.minimum(state.cached_R[:batch], state.lens_R[:batch] - 1))
        columns = state.columns
        state.out_RO[:batch, : key.gamma + 1].copy_(emitted_BW)
        state.out_RO[:batch, columns.accepted].copy_(accepted_B)
        state.out_RO[:batch, columns.verified].copy_(verified_B)

    def mutable(self) -> list[Tensor]:
        """What a step changes and a capture's warm-up must put back."""
        return [*self.state.mutable(), *(self.trees.mutable() if self.trees is not None else ())]

    def grow_pieces(self, tree: TreeKey) -> int:
        """How many pieces it takes to fill a tree."""
        return 1 if self.drafter is None or self.drafter.when == "ahead" else tree.depth

    def grow(self, key: GrowKey, level: int) -> None:
        """Fill the trees of this step: the tokens below the nodes of one level, or all of them."""
        assert isinstance(self.drafter, TreeDrafter), "trees are offered only with a drafter that fills them"
        self.drafter.grow(self.state, self._forest, key, level)

    def draft_pieces(self, gamma: int) -> int:
        """How many pieces it takes to draft γ tokens."""
        if self.drafter is None or gamma == 0:
            return 0
        return 1 if self.drafter.when == "ahead" or self.drafter.at_once else gamma

    def draft(self, key: DraftKey, position: int = 0) -> None:
        """Draft the token at `position` of this step; or ahead, all of the next, and say how many could be verified."""
        assert self.drafter is not None
        if self.drafter.when == "before":
            self.drafter.draft(self.state, key, position)
            if key.signals:
                self._tell_available(key.batch)
            return
        self.drafter.propose(self.state, key.batch)
        if self.synthetic_M is not None:
            self.state.fill_drafts(key.batch)
        self._tell_available(key.batch)
        self.state.out_RO[: key.batch, self.state.columns.match_len].copy_(self.state.match_lens_R[: key.batch])

    def _tell_available(self, batch: int) -> None:
        self.state.out_RO[:batch, self.state.columns.available].copy_(self.state.available(batch))
