"""Documents to padded batches of about the same number of tokens, those of one batch about equally long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from engine.train.corpus import Document, padded
from engine.train.lesson import Batch

SHELF = 64  # batches whose documents are sorted by length together: padding stays small, neighbours stay mixed


def epoch(
    documents: Sequence[Document], tokens: int, device: torch.device | str, rng: random.Random | None = None
) -> Iterator[Batch]:
    """All documents once, `tokens` tokens a batch with padding (one document at least). Shuffled by `rng`."""
    order = list(documents)
    if rng is not None:
        rng.shuffle(order)
    for group in _groups(order, tokens, rng):
        yield pad(group, device)


def pad(documents: Sequence[Document], device: torch.device | str) -> Batch:
    """One row each, padded at the end, which causal attention never looks at."""
    width = padded(max(len(one) for one in documents))
    tokens = np.zeros((len(documents), width), dtype=np.int64)
    answer = np.zeros((len(documents), width), dtype=np.bool_)
    for row, one in enumerate(documents):
        tokens[row, : len(one)] = one.ids
        answer[row, one.answer_start : len(one)] = True
    return Batch(torch.from_numpy(tokens).to(device), torch.from_numpy(answer).to(device))


def _groups(order: list[Document], tokens: int, rng: random.Random | None) -> Iterator[list[Document]]:
    mean = max(1, sum(map(len, order)) // max(1, len(order)))
    shelf = max(1, SHELF * tokens // mean)
    for begin in range(0, len(order), shelf):
        groups = list(_fill(sorted(order[begin : begin + shelf], key=len), tokens))
        if rng is not None:
            rng.shuffle(groups)
        yield from groups


def _fill(documents: list[Document], tokens: int) -> Iterator[list[Document]]:
    group: list[Document] = []
    for one in documents:
        if group and padded(len(one)) * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(one)
    if group:
        yield group
