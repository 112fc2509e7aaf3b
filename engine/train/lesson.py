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


@torch.no_grad()
def prepare(
    teacher: Teacher, vocab: DraftVocab, head_SE: Tensor, batch: Batch, taps: Collection[int], depth: int, hard: float
) -> Lesson:
    """Let the teacher read a batch. Positions with fewer than `depth` tokens before them are left out.

    `hard` is the share of its single most likely token in what is taught; the rest is its distribution.
    """
    features = teacher.read(batch.tokens_BT, taps)
    rows_R = _positions(batch, depth)
    hidden_RE = features.hidden_BTE.flatten(0, 1).index_select(0, rows_R)
    law_RS = _law(teacher, vocab, head_SE, hidden_RE, hard)
    next_R = vocab.index_V[batch.tokens_BT.flatten()[rows_R + 1]]
    embedded_BTE = teacher.embed(batch.tokens_BT)
    return Lesson(batch, features, embedded_BTE, rows_R, law_RS, next_R, head_SE)


def _positions(batch: Batch, depth: int) -> Tensor:
    wanted_BT = batch.answer_BT.roll(-1, 1).clone()
    wanted_BT[:, -1] = False
    wanted_BT[:, :depth] = False
    return wanted_BT.flatten().nonzero().squeeze(1)


def _law(teacher: Teacher, vocab: DraftVocab, head_SE: Tensor, hidden_RE: Tensor, hard: float) -> Tensor:
    law = []
    at_once = max(1, LOGITS_AT_ONCE.get(hidden_RE.device.type, 1 << 25) // teacher.config.vocab_size)
    for part in hidden_RE.split(at_once):
        logits = teacher.decoder.logits(part)
        total = logits.float().logsumexp(-1, keepdim=True)
        soft = (F.linear(part, head_SE).float() - total).exp()
        best = vocab.index_V[logits.argmax(-1)]
        sharp = (1 - hard) * soft
        sharp.scatter_add_(1, best.clamp(min=0).unsqueeze(1), hard * (best >= 0).float().unsqueeze(1))
        law.append(sharp.to(hidden_RE.dtype))
    return torch.cat(law)


def guess_loss(logits_RS: Tensor, law_RS: Tensor) -> Tensor:
    """Mean cross-entropy against the target's law; what lies outside the draft vocabulary weighs nothing."""
    log_q = F.log_softmax(logits_RS, -1, dtype=torch.float32)
    return -(log_q * law_RS).sum() / max(1, len(law_RS))
