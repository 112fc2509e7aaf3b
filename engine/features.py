"""What a trained drafter keeps of the target's forward passes: one vector per token, in a cache like that of the keys.

Prefill and verification store it as they go, so that steps without drafts cost a trained drafter nothing more, and
whatever it has not looked at yet is there when γ rises again.

Shapes: S slots (those of the key/value cache, trash included), N packed tokens, E the vector's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from engine.attention import Attention
from engine.config import EngineConfig
from engine.models.linear import Linear

if TYPE_CHECKING:
    from engine.models.decoder import Decoder


class SlottedAttention(Attention, Protocol):
    """An attention that says where its tokens' keys go `[N]`."""

    slots_N: Tensor


@dataclass(frozen=True, slots=True)
class Features:
    """`cache_SE` holds the target's final-normed hidden state of each token, or a projection of its residual stream.

    With `project`, it is that of the residual stream before each of `layers` (their number of layers: after the last),
    side by side.
    """

    cache_SE: Tensor
    layers: tuple[int, ...] = ()
    project: Linear | None = None

    @classmethod
    def allocate(
        cls,
        config: EngineConfig,
        size: int,
        dtype: torch.dtype,
        layers: tuple[int, ...] = (),
        project: Linear | None = None,
    ) -> Features:
        slots = config.max_batch * config.context_len + 1
        return cls(torch.zeros((slots, size), dtype=dtype, device=config.device), layers, project)

    def copy(self, from_C: Tensor, to_C: Tensor) -> None:
        """Copy vectors from slots to slots."""
        self.cache_SE.index_copy_(0, to_C, self.cache_SE.index_select(0, from_C))

    def run(self, decoder: Decoder, tokens_N: Tensor, positions_N: Tensor, attend: SlottedAttention) -> Tensor:
        """The target's forward pass, its features stored on the way."""
        streams: dict[int, Tensor] = {}

        def tap(index: int, x_NE: Tensor) -> None:
            if index in self.layers:
                streams[index] = x_NE

        hidden_NE = decoder.forward(tokens_N, positions_N, attend, tap)
        kept_NE = hidden_NE
        if self.project is not None:
            kept_NE = self.project(torch.cat([streams[index] for index in self.layers], -1))
        self.cache_SE.index_copy_(0, attend.slots_N, kept_NE)
        return hidden_NE


def forward(
    decoder: Decoder, features: Features | None, tokens_N: Tensor, positions_N: Tensor, attend: SlottedAttention
) -> Tensor:
    """The target's final-normed hidden states `[N, E]`; whoever drafts from features finds those of the tokens."""
    if features is None:
        return decoder.forward(tokens_N, positions_N, attend)
    return features.run(decoder, tokens_N, positions_N, attend)
