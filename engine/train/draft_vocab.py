"""The draft vocabulary: the tokens a drafter can say, a slice of the target's.

A full output head is the largest matrix of a small model; a slice of its frequent rows is read ten times faster. Layout
of `d2t` and `t2d` as in EAGLE-3's checkpoints: draft id i stands for target id `i + d2t[i]`.
Shapes: V target vocabulary, S draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """`ids_S` are target ids in rising order; `index_V[t]` is t's draft id, or -1."""

    ids_S: Tensor
    index_V: Tensor

    @classmethod
    def of(cls, ids: Tensor, vocab_size: int) -> DraftVocab:
        """ValueError unless `ids` are distinct target ids."""
        ids_S = ids.long().sort().values
        if len(ids_S) == 0 or len(ids_S.unique()) != len(ids_S) or ids_S[0] < 0 or ids_S[-1] >= vocab_size:
            raise ValueError(f"a draft vocabulary needs distinct ids from 0 to {vocab_size - 1}")
        index_V = torch.full((vocab_size,), -1, dtype=torch.long)
        index_V[ids_S] = torch.arange(len(ids_S))
        return cls(ids_S, index_V)

    @property
    def size(self) -> int:
        return len(self.ids_S)

    @property
    def d2t(self) -> Tensor:
        return self.ids_S.cpu() - torch.arange(self.size)

    @property
    def t2d(self) -> Tensor:
        return self.index_V.cpu() >= 0

    def to(self, device: torch.device | str) -> DraftVocab:
        return DraftVocab(self.ids_S.to(device), self.index_V.to(device))


def frequent_tokens(tokens: NDArray[np.integer], tokenizer: Tokenizer, vocab_size: int, size: int) -> DraftVocab:
    """The `size` commonest of `tokens`; among them always end tokens, special tokens and all single bytes."""
    size = min(size, vocab_size)
    counts = np.bincount(tokens.astype(np.int64), minlength=vocab_size).astype(np.float64)
    needed = np.array(sorted(needed_tokens(tokenizer, vocab_size)), dtype=np.int64)
    counts[needed] = np.inf
    # A stable sort prefers lower ids among equals, and byte-pair vocabularies list common tokens first.
    chosen = np.argsort(-counts, kind="stable")[: max(size, len(needed))]
    return DraftVocab.of(torch.from_numpy(chosen), vocab_size)


def needed_tokens(tokenizer: Tokenizer, vocab_size: int) -> set[int]:
    """End tokens, and tokens of at most one byte: with these a drafter can spell anything and stop."""
    short = {id for id in tokenizer.vocabulary().values() if len(tokenizer.token_bytes([id])) <= 1}
    return {id for id in short | set(tokenizer.eos_ids) if id < vocab_size}


def coverage(vocab: DraftVocab, tokens: NDArray[np.integer]) -> float:
    """The share of `tokens` that a drafter with this vocabulary can say: its acceptance can not be higher."""
    said = vocab.t2d.numpy()[tokens.astype(np.int64)]
    return float(said.mean()) if len(said) else float("nan")
