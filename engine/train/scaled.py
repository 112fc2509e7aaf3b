"""A projection of the target's features that starts at their scale. Shapes: I inputs, E hidden size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST_SPREAD = 1e-4


class ScaledLinear(nn.Module):
    """A linear layer over inputs divided by their own spread, which is folded into the weight when it is saved.

    Some dimensions of a residual stream are a hundred times larger than others; with one step size for all weights
    these would learn far too fast and the others hardly.
    """

    per_input: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=inputs**-0.5))
        self.register_buffer("per_input", torch.ones(inputs))
        self.is_loaded = False

    @torch.no_grad()
    def fit(self, x_BTI: Tensor) -> None:
        """Measure the spread on `x`, without the first token, whose features are of another size altogether.

        A weight that was loaded goes on doing what it did; a fresh one begins at the measured scale.
        """
        spread_I = x_BTI[:, 1:].float().flatten(0, 1).std(0)
        folded = self.folded()
        self.per_input.copy_(1 / spread_I.clamp(min=SMALLEST_SPREAD))
        if self.is_loaded:
            self.unfold(folded)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.per_input.to(x.dtype), self.weight.to(x.dtype))

    def folded(self) -> Tensor:
        """The weight `[E, I]` that does the same to inputs as they are."""
        return (self.weight * self.per_input).detach()

    @torch.no_grad()
    def unfold(self, weight: Tensor) -> None:
        """Take a folded weight, keeping the measured spread."""
        self.weight.copy_(weight.to(self.weight) / self.per_input)
        self.is_loaded = True
