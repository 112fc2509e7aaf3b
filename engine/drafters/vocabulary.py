"""What a trained drafter reads and says: the target's tokens, or a slice of them, by the target's weights or its own.

Shapes: V the target's vocabulary, D the draft vocabulary, E hidden size, N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is drafted for. `head_VE` is its output head as stored, of which a slice may be taken."""

    decoder: Decoder
    head_VE: Tensor

    @classmethod
    def of(cls, decoder: Decoder, weights: Mapping[str, Tensor]) -> Target:
        """`weights` are those the decoder was made from."""
        tied = decoder.config.tie_embeddings
        return cls(decoder, weights["model.embed_tokens.weight" if tied else "lm_head.weight"])


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """`ids_D` are the target's ids of the draft tokens; None where they are all of them, in order."""

    embedding_VE: Tensor
    ids_D: Tensor | None
    _target: Target
    _own_head: Tensor | None

    @property
    def target_size(self) -> int:
        return self._target.decoder.config.vocab_size

    @classmethod
    def make(cls, weights: Mapping[str, Tensor], target: Target, name: str) -> DraftVocabulary:
        """`weights` are the drafter's; `name` says where they come from. ValueError for a table that makes no sense."""
        device = target.decoder.embedding_VE.device
        own = weights.get("embed_tokens.weight")
        embedding_VE = target.decoder.embedding_VE if own is None else own.to(device)
        ids_D = draft_ids(weights, target.decoder.config.vocab_size, name)
        own_head = weights.get("lm_head.weight")
        return cls(embedding_VE, None if ids_D is None else ids_D.to(device), target, own_head)

    def head(self) -> Linear:
        """Hidden states `[N, E]` to logits `[N, D]`, by its own head, the target's or a copied slice of that."""
        whole = self._own_head is None and self.ids_D is None
        return self._target.decoder.head if whole else make_linear(self.head_rows())

    def head_rows(self) -> Tensor:
        """The head's rows of the draft tokens `[D, E]`."""
        rows_VE = self._target.head_VE
        if self._own_head is not None:
            rows_DE = self._own_head
        else:
            rows_DE = rows_VE if self.ids_D is None else rows_VE.index_select(0, self.ids_D.to(rows_VE.device))
        return rows_DE.to(self.embedding_VE.device)


def draft_ids(weights: Mapping[str, Tensor], vocab_size: int, name: str) -> Tensor | None:
    """The target's id of each draft token `[D]`: token i is i + `d2t[i]`, as EAGLE-3 stores it.

    None where that is every token in its place. ValueError when an id is out of range or there twice, or `t2d` (which
    of the target's tokens can be drafted) says otherwise.
    """
    offset_D = weights.get("d2t")
    if offset_D is None:
        return None
    ids_D = torch.arange(len(offset_D)) + offset_D.to(torch.int64)
    outside = ids_D[(ids_D < 0) | (ids_D >= vocab_size)]
    if len(outside):
        raise ValueError(f"{name}: d2t names token {int(outside[0])}, outside the model's vocabulary of {vocab_size}")
    if len(ids_D.unique()) != len(ids_D):
        raise ValueError(f"{name}: d2t names a token twice: its entry i must be (the token's id - i)")
    chosen_V = weights.get("t2d")
    if chosen_V is not None:
        expected_V = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids_D, True)
        if not torch.equal(expected_V, chosen_V.to(torch.bool)):
            raise ValueError(f"{name}: t2d and d2t name different tokens: write both from one list")
    return None if torch.equal(ids_D, torch.arange(vocab_size)) else ids_D
