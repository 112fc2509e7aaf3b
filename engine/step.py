"""The decode step: draft, verify, accept - captured pieces over persistent buffers.

Static shapes, no look at the host. The key fixes every shape; which row gets how many tokens, which draft tokens stand
and what is drawn are decided on the device. A drafter that copies text drafts ahead, right after acceptance, so that
the one packed copy to the host also says how many tokens each row can verify next. A draft model drafts before
verification, in one piece per position.

Shapes: B batch bucket, N packed tokens, G = γ, W = γ + 1, C context bucket, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal
from adaptive.requests import MAX_LOGPROBS
from engine.attention import PackedAttention, causal_mask
from engine.batch import RowState
from engine.drafters import Drafter, DraftKey
from engine.features import features_of, forward
from engine.graphs import Piece
from engine.kv import KVCache
from engine.layout import PackedLayout, pack
from engine.models.decoder import Decoder
from engine.sampling.distribution import Sampler, choose, distribution
from engine.sampling.randomness import ACCEPT, CHOOSE, SYNTHETIC, uniform
from engine.sampling.verify import count_accepted, verify_block, verify_greedy, verify_standard
from engine.signals import note_target
from engine.split import verify_lens


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

    @property
    def draft(self) -> DraftKey:
        """The part that drafting depends on."""
        return DraftKey(self.batch, self.context, self.sampler, self.signals - {"target_entropy"})


@dataclass(frozen=True, slots=True)
class StepBundle:
    """The captured pieces of one key, swapped as a whole. Plain decode (γ = 0) has nothing to draft.

    Where drafting comes before verification, its first piece is not among them: it depends on what the rows lack.
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

    def verify(self, key: StepKey) -> None:
        """One target forward over the packed roots and draft tokens; leaves logits."""
        self._choose_lens(key)
        state, layout = self.state, self._layout(key)
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
        hidden_NE = forward(self.decoder, features_of(self.drafter), tokens_N, position_N, attention)
        self.logits_NV[: key.verify_tokens].copy_(self.decoder.logits(hidden_NE))

    def _choose_lens(self, key: StepKey) -> None:
        """How many draft tokens each row verifies: all there are, or its share."""
        state, batch = self.state, key.batch
        if key.trimmed:
            lens_B = verify_lens(state, batch, key.gamma, key.signals)
        else:
            lens_B = state.available(batch).clamp(max=key.gamma)
        state.verify_lens_R[:batch].copy_(lens_B)

    def _layout(self, key: StepKey) -> PackedLayout:
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
        drafts_BG = self.state.drafts_RM[: key.batch, : key.gamma]
        if self.synthetic_M is not None:
            accepted_B, emitted_BW = self._override(key, layout, logits_NV, drafts_BG, self.synthetic_M)
        elif key.sampler is Sampler.GREEDY:
            accepted_B, emitted_BW = verify_greedy(logits_NV.argmax(-1), layout.grid_BW, drafts_BG, layout.verified_B)
        else:
            accepted_B, emitted_BW = self._sample(key, layout, logits_NV, drafts_BG)
        if key.signals:
            note_target(self.state, key.signals, logits_NV, layout.grid_BW, self._plain_draft_probs(key))
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
        if key.sampler is Sampler.GREEDY:
            next_B = logits_NV.argmax(-1)[final_B]
        else:
            probs_NV = self._probs(key, layout.row_N, logits_NV)
            next_B = choose(probs_NV.index_select(0, final_B), self._uniforms(key, 1, CHOOSE).squeeze(1))
        next_B1 = next_B.unsqueeze(1)
        return accepted_B, torch.cat([drafts_BG, next_B1], 1).scatter(1, accepted_B1, next_B1)

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
