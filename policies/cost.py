"""Seconds of a step in pieces: drafting, verification, and plain decoding as a point of its own.

The form is a step function over captured widths (a graph is as slow as its padded width), smooth above the largest:
with b the batch padded to a captured batch, n the packed tokens padded to a captured width, c the context tokens that
attention reads (b times what a row holds on average and drafts, padded to a captured width, where those are known),

    drafting      γ·(d₀ + d₁·b + d₂·c) + d₃           (0 at γ = 0)
    verification  (v₀ + v₁·b + v₂·n + v₃·c + v₄·n·c/b) · knot(n)
    plain decode  (p₀ + p₁·b + p₂·c) · knot(b)

where `knot` is what was measured over the smooth form at the widths that were measured, interpolated between them.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from adaptive.contract import Identity

FORMAT = "adaptive cost profile 1"

Knots = tuple[tuple[int, float], ...]
"""(width, logarithm of measured over smooth), widths ascending."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Fitted seconds of the pieces; implements `adaptive.contract.CostModel`.

    Coefficients are seconds per unit of their feature, see the module. Plain decode is `verify_s` with no more tokens
    than rows. `batches`, `widths` and `contexts` (tokens a row) are the captured ones, ascending; empty pads nothing.
    `identity` says which machine and model were measured (None: unknown), `error` the median relative error of the fit.

    >>> cost = StepCost(draft=(1e-3, 0, 0, 0), verify=(0.05, 0, 1e-3, 0, 0), plain=(0.04, 0, 0), widths=(1, 2, 4, 8))
    >>> seconds = [cost.draft_s(1, 3, 100), *(cost.verify_s(1, tokens, 100) for tokens in (4, 3, 1))]
    >>> [round(one, 4) for one in seconds]
    [0.003, 0.054, 0.054, 0.04]
    """

    draft: tuple[float, float, float, float]
    verify: tuple[float, float, float, float, float]
    plain: tuple[float, float, float]
    batches: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    verify_knots: Knots = ()
    plain_knots: Knots = ()
    identity: Identity | None = None
    label: str = ""
    error: float = float("nan")
    samples: int = 0

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        """Seconds to draft γ tokens per row."""
        if gamma == 0:
            return 0.0
        step, per_row, per_context, fixed = self.draft
        context = self.read(batch, batch * (gamma + 1), context_tokens)
        return gamma * (step + per_row * pad(self.batches, batch) + per_context * context) + fixed

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        """Seconds of everything but drafting, `verify_tokens` packed tokens with the roots among them."""
        rows, context = pad(self.batches, batch), self.read(batch, verify_tokens, context_tokens)
        if verify_tokens <= batch:
            fixed, per_row, per_context = self.plain
            smooth = fixed + per_row * rows + per_context * context
            return smooth * math.exp(interpolate(self.plain_knots, rows))
        fixed, per_row, per_token, per_context, per_pair = self.verify
        tokens = pad(self.widths, verify_tokens)
        smooth = fixed + per_row * rows + per_token * tokens
        smooth += (per_context + per_pair * tokens / rows) * context
        return smooth * math.exp(interpolate(self.verify_knots, tokens))

    def read(self, batch: int, tokens: int, context_tokens: int) -> int:
        """Context tokens that attention reads where `tokens` are packed, roots included: all, or what is captured."""
        if not self.contexts:
            return context_tokens
        return pad(self.batches, batch) * pad(self.contexts, -(-(context_tokens + tokens) // batch))

    def require(self, identity: Identity | None) -> None:
        """ValueError, naming both, if this was measured on another machine or model; an unknown one is let pass."""
        if self.identity is None or identity is None:
            return
        for what, measured, present in zip(("machine", "model"), self.identity, identity, strict=True):
            if measured != present:
                raise ValueError(
                    f"the cost profile was measured on {what} {measured!r} and this is {present!r}: "
                    "its times do not apply here; measure again with `adaptive profile`"
                )

    def save(self, path: str | Path) -> None:
        """Write as JSON, readable and complete."""
        content = {"format": FORMAT, **asdict(self), "identity": self.identity and self.identity._asdict()}
        if math.isnan(self.error):
            content["error"] = None
        Path(path).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, identity: Identity | None = None) -> Self:
        """Read what `save` wrote. ValueError if it is not a profile, or was measured on another than `identity`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"cost profile {str(path)!r} is not valid JSON: {error}") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"{str(path)!r} is not a cost profile: write one with `adaptive profile`")
        try:
            cost = cls(**_restored(content))
        except (TypeError, ValueError) as error:
            raise ValueError(f"cost profile {str(path)!r} is damaged: {error}") from error
        cost.require(identity)
        return cost


def pad(captured: Sequence[int], size: int) -> int:
    """The captured width that runs `size`; past the largest, `size` itself."""
    place = bisect_left(captured, size)
    return captured[place] if place < len(captured) else size


def interpolate(knots: Knots, width: float) -> float:
    """Linear in the logarithm of the width, constant outside; 0 without knots.

    >>> round(interpolate(((1, 0.0), (4, 0.2)), 2), 3)
    0.1
    """
    place = bisect_left(knots, (width,))
    if place == len(knots):
        return knots[-1][1] if knots else 0.0
    high, at_high = knots[place]
    if place == 0 or width == high:
        return at_high
    low, at_low = knots[place - 1]
    return at_low + (at_high - at_low) * math.log(width / low) / math.log(high / low)


def _restored(content: Mapping[str, Any]) -> dict[str, Any]:
    """Lists back to tuples."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    for name in ("verify_knots", "plain_knots"):
        fields[name] = tuple((int(width), float(value)) for width, value in fields.get(name, ()))
    identity = content.get("identity")
    if identity is not None:
        fields["identity"] = Identity(**identity)
    if fields.get("error") is None:
        fields["error"] = float("nan")
    for name, length in (("draft", 4), ("verify", 5), ("plain", 3)):
        if len(fields[name]) != length:
            raise ValueError(f"{name} has {len(fields[name])} coefficients instead of {length}")
    return fields
