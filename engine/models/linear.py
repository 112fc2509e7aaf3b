"""Matrix products with the fastest kernel torch has for the device: oneDNN on prepacked weights on a CPU.

Shapes: N packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.models.fewest_rows import fewest_rows

Linear = Callable[[Tensor], Tensor]

WORTH_PADDING = 1 << 18  # weights of a matrix from which on a product takes longer than filling up its rows


def prepacked(device: str | torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN holds such weights in its own blocked layout (about three times faster at few tokens)."""
    onednn_types = (torch.float32, torch.bfloat16)
    return torch.device(device).type == "cpu" and dtype in onednn_types and torch.backends.mkldnn.is_available()


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """x [N, in] -> x @ weight.T + bias [N, out], for weight [out, in]."""
    product = make_product(weight, bias)
    if not prepacked(weight.device, weight.dtype) or weight.numel() < WORTH_PADDING:
        return product
    fewest = fewest_rows(weight.dtype, torch.get_num_threads())
    return _padded(product, fewest) if fewest > 1 else product


def make_product(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The same with as many rows as there are."""
    if not prepacked(weight.device, weight.dtype):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    pointwise = torch.ops.mkldnn._linear_pointwise

    def product(x: Tensor) -> Tensor:
        out: Tensor = pointwise(x, packed, bias, "none", [], "")
        return out

    return product


def _padded(product: Linear, fewest: int) -> Linear:
    """The same for `fewest` rows or more: what is short of them is filled up with zeros."""

    def padded(x_N: Tensor) -> Tensor:
        count = x_N.shape[0]
        return product(x_N) if count >= fewest else product(F.pad(x_N, (0, 0, 0, fewest - count)))[:count]

    return padded
