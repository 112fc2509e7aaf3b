"""The decode step: verify, accept, draft - three captured pieces over persistent buffers.

Static shapes, no look at the host. The key fixes every shape; which row gets how many tokens, which draft tokens stand
and what is drawn are decided on the device. A drafter that copies text drafts right after acceptance, so that the one
packed copy to the host also says how many tokens each row can verify next.

Shapes: B batch bucket, N packed tokens, W = γ + 1, C context bucket, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive.requests import MAX_LOGPROBS
from engine.attention import PackedAttention, causal_mask
from engine.batch import RowState
from engine.drafters import Drafter
from engine.graphs import Piece, no_piece
from engine.kv import KVCache
from engine.layout import PackedLayout, pack
from engine.models.decoder import Decoder
from engine.sampling.distribution import Sampler, distribution
from engine.sampling.randomness import ACCEPT, CHOOSE, uniform
from engine.sampling.verify import verify_greedy, verify_standard


@dataclass(frozen=True, slots=True)
class StepKey:
    """Everything that fixes a shape or a branch of a step. `verify_tokens` counts packed tokens, roots included."""

    batch: int
    gamma: int
    verify_tokens: int
    context: int
    sampler: Sampler = Sampler.GREEDY
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class DraftKey:
    """What fixes the shapes of drafting: bundles that agree in it share one draft piece."""

    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class StepBundle:
    """The captured pieces of one key, swapped as a whole. Plain decode (γ = 0) has nothing to draft."""

    key: StepKey
    verify: Piece
    accept: Piece
    draft: Piece = no_piece


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Builds the pieces of any key over one set of buffers. `logits_NV` carries a step from verify to accept."""

    decoder: Decoder
    kv: KVCache
    state: RowState
    drafter: Drafter | None
    logits_NV: Tensor

    def verify(self, key: StepKey) -> None:
        """One target forward over the packed roots and draft tokens; leaves logits."""
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
        hidden_NE = self.decoder.forward(self._tokens(key, layout, root_N), position_N, attention)
        self.logits_NV[: key.verify_tokens].copy_(self.decoder.logits(hidden_NE))

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
        if key.sampler is Sampler.GREEDY:
            accepted_B, emitted_BW = verify_greedy(logits_NV.argmax(-1), layout.grid_BW, drafts_BG, layout.verified_B)
        else:
            accepted_B, emitted_BW = self._sample(key, layout, logits_NV, drafts_BG)
        if key.logprobs:
            self._logprobs(key, logits_NV, layout.grid_BW, emitted_BW)
        self._append(key, emitted_BW, accepted_B, layout.verified_B)

    def _sample(self, key: StepKey, layout: PackedLayout, logits: Tensor, drafts_BG: Tensor) -> tuple[Tensor, Tensor]:
        state, row_N = self.state, layout.row_N
        settings = (state.temperature_R, state.top_k_R, state.top_p_R)
        temperature_N, top_k_N, top_p_N = (buffer.index_select(0, row_N) for buffer in settings)
        probs_NV = distribution(logits, temperature_N, top_k_N, top_p_N, filtered=key.sampler is Sampler.FILTERED)
        seeds_B1, steps_B1 = (buffer[: key.batch].unsqueeze(1) for buffer in (state.seeds_R, state.steps_R))
        place_W = torch.arange(key.gamma + 1, device=row_N.device)
        accept_BG = uniform(seeds_B1, steps_B1, place_W[:-1], ACCEPT)
        choose_B = uniform(seeds_B1, steps_B1, place_W[:1], CHOOSE).squeeze(1)
        return verify_standard(probs_NV, layout.grid_BW, drafts_BG, layout.verified_B, accept_BG, choose_B)

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
        columns = state.columns
        state.out_RO[:batch, : key.gamma + 1].copy_(emitted_BW)
        state.out_RO[:batch, columns.accepted].copy_(accepted_B)
        state.out_RO[:batch, columns.verified].copy_(verified_B)

    def draft(self, key: DraftKey) -> None:
        """Draft for the next step, and say how many tokens each row could verify there."""
        assert self.drafter is not None
        self.drafter.propose(self.state, key.batch, key.context)
        columns = self.state.columns
        self.state.out_RO[: key.batch, columns.available].copy_(self.state.available(key.batch))
        self.state.out_RO[: key.batch, columns.match_len].copy_(self.state.match_lens_R[: key.batch])
