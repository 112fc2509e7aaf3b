"""Attention on a CPU row by row: what each row holds is looked at, so that no row pays for the longest.

A step that is recorded runs on a padded grid, since its shapes may depend on no data. A CPU records nothing, and there
attention is a kernel like any other, free to look at what it is given. It cuts the batch into runs of neighbouring
rows. A run is padded to its own longest row and reads no more of the cache than its own rows hold. Rows that have no
token in the step are left out.

Shapes: N packed tokens, B batch bucket, W tokens per row of the grid, C context bucket, H query heads, K key/value
heads, D head size, G = H / K, R rows of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

# What a call costs, and reading a key, in the time that attending to one key takes: measured at 3 heads of 64 in f32.
CALL, READ = 2048, 8


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `first` to `last` - 1, up to `width` tokens of each, which see no key from `context` on.

    `start` is the packed index of the first token where the tokens stand side by side, without padding.
    """

    first: int
    last: int
    width: int
    context: int
    start: int | None = None


def may_look(tensor: Tensor) -> bool:
    """Whether a piece on `tensor` may depend on its data: on a CPU, unless its operations are being recorded."""
    return tensor.device.type == "cpu" and _get_current_dispatch_mode() is None


def look(tensor: Tensor) -> NDArray[np.int64]:
    """What a kernel is given: no wait, since on a CPU everything before it is done."""
    values: NDArray[np.int64] = tensor.numpy()
    return values


def plan(slots_N: Tensor, grid_BW: Tensor, capacity: int, context: int) -> tuple[Run, ...]:
    """The runs of a step. A row's tokens are those of its grid's tokens that have a slot in the row.

    Its tokens see no key past the last of these slots. A row without any is in no run.
    """
    grid = look(grid_BW)
    row_B = np.arange(len(grid))
    place_BW = look(slots_N)[grid] - capacity * row_B[:, None]
    own_BW = (place_BW >= 0) & (place_BW < capacity)
    counts = np.where(own_BW.any(1), 1 + (np.diff(grid) != 0).sum(1), 0)
    seen = np.where(own_BW, place_BW, 0).max(1) + 1
    return tuple(_placed(run, grid) for run in cut(counts.tolist(), np.minimum(seen, context).tolist()))


def _placed(run: Run, grid_BW: NDArray[np.int64]) -> Run:
    tokens = grid_BW[run.first : run.last, : run.width].flatten()
    start = int(tokens[0])
    beside = bool((tokens == np.arange(start, start + len(tokens))).all())
    return Run(run.first, run.last, run.width, run.context, start if beside else None)


def cut(counts: list[int], seen: list[int]) -> list[Run]:
    """The cheapest cut of rows with `counts[b]` tokens that see up to `seen[b]` keys, those of 0 tokens left out.

    By dynamic programming: the cheapest cut of the first b rows ends with some run, after the cheapest cut of the rows
    before that run.
    """
    # Of the first b rows: what their cheapest cut costs, and its last run (of width 0 where row b - 1 has no token).
    costs: list[float] = [0]
    runs = [Run(0, 0, 0, 0)]
    for last in range(1, len(counts) + 1):
        least, chosen = costs[-1], (last, 0, 0)
        if counts[last - 1]:
            least, width, context = math.inf, 0, 0
            for first in range(last - 1, -1, -1):
                width, context = max(width, counts[first]), max(context, seen[first])
                own = CALL + (last - first) * context * (READ + width)
                if not counts[first] or own >= least:  # a longer run costs more still
                    break
                if costs[first] + own < least:
                    least, chosen = costs[first] + own, (first, width, context)
        costs.append(least)
        runs.append(Run(chosen[0], last, *chosen[1:]))
    found: list[Run] = []
    place = len(counts)
    while place:
        if runs[place].width:
            found.append(runs[place])
            place = runs[place].first
        else:
            place -= 1
    return found[::-1]


def attend(runs: tuple[Run, ...], q_NHD: Tensor, keys: Tensor, values: Tensor, grid_BW: Tensor, mask: Tensor) -> Tensor:
    """`[N, H · D]`, 0 for tokens of no run; keys and values are `[B, K, C, D]` and the mask `[B, 1, W · G, C]`."""
    out_NHD = torch.zeros(q_NHD.shape, dtype=q_NHD.dtype, device=q_NHD.device)
    for run in runs:
        rows, count = slice(run.first, run.last), (run.last - run.first) * run.width
        if run.start is None:
            index_X = grid_BW[rows, : run.width].flatten()
            out_XHD = _attend(run, q_NHD.index_select(0, index_X), keys[rows], values[rows], mask[rows])
            out_NHD.index_copy_(0, index_X, out_XHD)
        else:
            beside = slice(run.start, run.start + count)
            out_NHD[beside] = _attend(run, q_NHD[beside], keys[rows], values[rows], mask[rows])
    return out_NHD.flatten(1)


def _attend(run: Run, q_XHD: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`[R · W, H, D]` of the run's rows."""
    (X, H, D), (R, K) = q_XHD.shape, keys.shape[:2]
    q_RKXD = q_XHD.reshape(R, run.width, K, H // K, D).transpose(1, 2).reshape(R, K, -1, D)
    sight = mask[:, :, : q_RKXD.shape[2], : run.context]
    seen_keys, seen_values = keys[:, :, : run.context], values[:, :, : run.context]
    out_RKXD = F.scaled_dot_product_attention(q_RKXD, seen_keys, seen_values, attn_mask=sight)
    return out_RKXD.view(R, K, run.width, H // K, D).transpose(1, 2).reshape(X, H, D)
