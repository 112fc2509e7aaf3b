"""The distribution a row samples from: temperature, top-k and top-p over the target's logits.

Shapes: N packed tokens, B rows, V vocabulary.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor


class Sampler(StrEnum):
    """What a step must be able to do; part of its key, so that greedy batches pay for no softmax and no sort."""

    GREEDY = "greedy"  # every row takes the most likely token
    PLAIN = "plain"  # temperatures, no filters
    FILTERED = "filtered"  # some row uses top-k or top-p


def distribution(logits_NV: Tensor, temperature_N: Tensor, top_k_N: Tensor, top_p_N: Tensor, filtered: bool) -> Tensor:
    """Probabilities `[N, V]`; a row of temperature 0 is one-hot on its most likely token (the first of equals)."""
    greedy_N1 = (temperature_N == 0).unsqueeze(1)
    best_N1 = logits_NV.argmax(-1, keepdim=True)
    below_NV = logits_NV - logits_NV.gather(1, best_N1)  # so that no temperature is too low: 0 stays 0
    scaled_NV = below_NV / torch.where(greedy_N1, 1.0, temperature_N.unsqueeze(1)).to(logits_NV.dtype)
    if filtered:
        scaled_NV = _filter(scaled_NV, top_k_N, top_p_N)
    one_hot_NV = torch.zeros_like(logits_NV).scatter(1, best_N1, 1.0)
    return torch.where(greedy_N1, one_hot_NV, scaled_NV.softmax(-1))


def _filter(scaled_NV: Tensor, top_k_N: Tensor, top_p_N: Tensor) -> Tensor:
    """Keep the k most likely, then the smallest set of them that reaches p. k = 0 and p = 1 filter nothing."""
    vocab = scaled_NV.shape[-1]
    sorted_NV, order_NV = scaled_NV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(vocab, device=scaled_NV.device)
    limit_N = torch.where(top_k_N == 0, vocab, top_k_N)
    sorted_NV = sorted_NV.masked_fill(rank_V >= limit_N.unsqueeze(1), float("-inf"))
    probs_NV = sorted_NV.softmax(-1)
    reached_NV = probs_NV.cumsum(-1) - probs_NV >= top_p_N.unsqueeze(1)
    reached_NV = reached_NV & (top_p_N < 1).unsqueeze(1)
    return torch.empty_like(scaled_NV).scatter(1, order_NV, sorted_NV.masked_fill(reached_NV, float("-inf")))


def choose(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Inverse CDF over unnormalised weights `[B, V]`: token ids `[B]`, never one of weight 0."""
    cumulative_BV = weights_BV.to(torch.float64).cumsum(-1)
    threshold_B1 = uniform_B.unsqueeze(1) * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(1).clamp(max=weights_BV.shape[-1] - 1)
