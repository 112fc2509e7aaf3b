"""Medusa (Cai et al. 2024): independent heads on the target's last hidden state, head k for draft token k.

A head is some residual blocks x + silu(W x + b), then a projection onto the vocabulary: its own, or the target's. With
heads trained beside a frozen target this is Medusa-1; Medusa-2 has a target tuned with its heads, which is then the
model that the engine loads. Shapes: B batch bucket, G = γ, N = B · G, E hidden size, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters.base import CatchUpKey, DraftKey
from engine.drafters.head_format import HeadFormat
from engine.drafters.stepwise import DraftsBefore
from engine.drafters.vocabulary import DraftVocabulary, Target
from engine.features import Features
from engine.models.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """`own` is the head's own projection; None where it is shared."""

    blocks: Sequence[Linear]
    own: Linear | None

    def run(self, hidden_BE: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_BE = hidden_BE + F.silu(block(hidden_BE))
        return hidden_BE


class MedusaDrafter(DraftsBefore):
    """Drafts all γ tokens in one piece, from the feature of the last token that the target has seen.

    It has no cache of its own, so it never lags behind its rows.
    """

    name = "medusa"
    least = 2  # before a single token there is no feature
    reach = 1 << 60
    keeps_drafts = False
    at_once = True

    def __init__(
        self,
        heads: Sequence[MedusaHead],
        shared: Linear | None,
        vocabulary: DraftVocabulary,
        features: Features,
        config: EngineConfig,
    ) -> None:
        """`shared` is the projection of all heads, where none has its own."""
        deepest, dtype = min(config.max_gamma, len(heads)), vocabulary.embedding_VE.dtype
        super().__init__(config, "medusa", deepest, config.context_len, vocabulary.target_size, dtype)
        self.features = features
        self._cache_SE = features.cache_SE
        self.ids_D = vocabulary.ids_D
        self._heads = heads
        self._shared = shared

    def catch_up(self, state: RowState, key: CatchUpKey) -> None:
        """Nothing can be lacking."""

    def draft(self, state: RowState, key: DraftKey, position: int) -> None:
        drafting_B = self.drafting(state, key.batch)
        self.set_lens(state, drafting_B)
        row_B = torch.arange(key.batch, device=drafting_B.device)
        slot_B = row_B * state.capacity + state.lens_R[: key.batch] - 2
        slot_B = torch.where(drafting_B > 0, slot_B, state.rows * state.capacity)
        logits_GBD = self.logits(self._cache_SE.index_select(0, slot_B), key.width or self.caps.max_gamma)
        for place, logits_BD in enumerate(logits_GBD.unbind(0)):
            self.draw(state, key, place, logits_BD)

    def logits(self, feature_BE: Tensor, gamma: int) -> Tensor:
        """Of the first γ heads `[G, B, D]`. A shared projection reads its weights once for all of them."""
        heads = self._heads[:gamma]
        hidden = [head.run(feature_BE) for head in heads]
        if self._shared is not None:
            logits_ND: Tensor = self._shared(torch.cat(hidden))
            return logits_ND.view(gamma, feature_BE.shape[0], -1)
        return torch.stack([head.own(x_BE) for head, x_BE in zip(heads, hidden, strict=True) if head.own is not None])


def medusa_drafter(
    source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig
) -> MedusaDrafter:
    """The drafter that `weights`, named as in the published files, make."""
    vocabulary = DraftVocabulary.make(weights, target, source.name)

    def linear(name: str) -> Linear:
        bias = weights.get(f"{name}.bias")
        placed = None if bias is None else bias.to(config.device)
        return make_linear(weights[f"{name}.weight"].to(config.device), placed)

    heads = []
    for number in range(source.count):
        blocks = [linear(f"{number}.{place}.linear") for place in range(source.depth)]
        own = f"{number}.{source.depth}"
        heads.append(MedusaHead(blocks, linear(own) if f"{own}.weight" in weights else None))
    shared = vocabulary.head() if heads[0].own is None else None
    features = Features.allocate(config, source.hidden_size, target.decoder.dtype)
    return MedusaDrafter(heads, shared, vocabulary, features, config)
