"""One batch as a drafter learns from it: what the target read, thought and would say next.

A *chain* is one drafting from one place: chain t knows the target's feature of token t and the token after it, and its
step s guesses token t + 2 + s. Shapes: B sequences, T tokens, E hidden size, S draft vocabulary, R positions learnt
from. Position r of R is an index into the flattened `[B · T]`; what follows it is what is to be guessed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.train.draft_vocab import DraftVocab
from engine.train.teacher import LOGITS_AT_ONCE, Features, Teacher


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded token ids; `answer_BT` marks the tokens that are worth guessing, never padding."""

    tokens_BT: Tensor
    answer_BT: Tensor


@dataclass(frozen=True, slots=True)
class Lesson:
    """Batch, features and the target's next-token law at R positions, within the draft vocabulary.

    `law_RS` sums to less than 1 where the target may say something that the drafter can not. `next_R` is the draft id
    of the token that really follows, -1 where it has none.
    """

    batch: Batch
    features: Features
    embedded_BTE: Tensor
    rows_R: Tensor
    law_RS: Tensor
    next_R: Tensor
    head_SE: Tensor

    def embedded(self, shift: int) -> Tensor:
        """Embedding of token t + `shift` at place t; what comes around at the end is read by no chain that counts."""
        return self.embedded_BTE.roll(-shift, 1)

    def at(self, x_BTE: Tensor, step: int) -> Tensor:
        """Rows `[R, E]` of the chains whose step `step` guesses what follows each of the R positions."""
        return x_BTE.flatten(0, 1).index_select(0, self.rows_R - 1 - step)

    def logits(self, out_BTE: Tensor, step: int) -> Tensor:
        """Draft logits `[R, S]` of normed outputs of step `step`."""
        return F.linear(self.at(out_BTE, step), self.head_SE.to(out_BTE.dtype))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the teacher thought of a batch, small enough to be kept.

    `total_R` is the logarithm of the sum over its whole vocabulary, `best_R` its likeliest token.
    """

    batch: Batch
    features: Features
    rows_R: Tensor
    total_R: Tensor
    best_R: Tensor

    @property
    def num_bytes(self) -> int:
        kept = (self.features.hidden_BTE, *self.features.taps.values(), self.batch.tokens_BT)
        return sum(one.numel() * one.element_size() for one in kept)


@torch.no_grad()
def read(teacher: Teacher, batch: Batch, taps: Collection[int], depth: int) -> Reading:
    """Let the teacher read a batch. Positions with fewer than `depth` tokens before them are not learnt from."""
    features = teacher.read(batch.tokens_BT, taps)
    rows_R = _positions(batch, depth)
    hidden_RE = features.hidden_BTE.flatten(0, 1).index_select(0, rows_R)
    at_once = max(1, LOGITS_AT_ONCE.get(hidden_RE.device.type, LOGITS_AT_ONCE["cpu"]) // teacher.config.vocab_size)
    totals, bests = [], []
    for part in hidden_RE.split(at_once):
        logits = teacher.decoder.logits(part)
        totals.append(logits.logsumexp(-1) if logits.dtype == torch.float64 else logits.float().logsumexp(-1))
        bests.append(logits.argmax(-1))
    return Reading(batch, features, rows_R, torch.cat(totals), torch.cat(bests))


@torch.no_grad()
def prepare(teacher: Teacher, vocab: DraftVocab, head_SE: Tensor, reading: Reading, hard: float) -> Lesson:
    """What is to be learnt from a reading.

    `hard` is the share of the teacher's single most likely token in what is taught; the rest is its distribution.
    """
    batch, rows_R = reading.batch, reading.rows_R
    hidden_RE = reading.features.hidden_BTE.flatten(0, 1).index_select(0, rows_R)
    law_RS = (F.linear(hidden_RE, head_SE).to(reading.total_R.dtype) - reading.total_R.unsqueeze(1)).exp_()
    best_R = vocab.index_V[reading.best_R]
    law_RS.mul_(1 - hard)
    law_RS.scatter_add_(1, best_R.clamp(min=0).unsqueeze(1), hard * (best_R >= 0).to(law_RS.dtype).unsqueeze(1))
    next_R = vocab.index_V[batch.tokens_BT.flatten()[rows_R + 1]]
    embedded_BTE = teacher.embed(batch.tokens_BT)
    return Lesson(batch, reading.features, embedded_BTE, rows_R, law_RS.to(hidden_RE.dtype), next_R, head_SE)


def _positions(batch: Batch, depth: int) -> Tensor:
    wanted_BT = batch.answer_BT.roll(-1, 1).clone()
    wanted_BT[:, -1] = False
    wanted_BT[:, :depth] = False
    return wanted_BT.flatten().nonzero().squeeze(1)


def guess_loss(logits_RS: Tensor, law_RS: Tensor) -> Tensor:
    """Mean cross-entropy against the target's law; what lies outside the draft vocabulary weighs nothing."""
    log_q = F.log_softmax(logits_RS, -1, dtype=torch.float32)
    return -(log_q * law_RS).sum() / max(1, len(law_RS))
