"""Which γ serves a batch best: expected tokens per second, under limits on the time per token.

Shapes: G candidate γ, B rows. Of a dozen γ Python's own lists are faster than arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from adaptive.contract import FloatArray, StepView

Floats = Sequence[float] | FloatArray


@dataclass(frozen=True, slots=True)
class Outlook:
    """What each of `gammas` (ascending, from 0) promises for one step, `[G]` each.

    `tokens_G` the batch is expected to emit in `seconds_G`. `strain_G` is the worst predicted time per token of any
    row as a share of that row's limit: above 1 a limit is missed. None where no row has one.
    """

    gammas: tuple[int, ...]
    tokens_G: Floats
    seconds_G: Floats
    strain_G: Floats | None = None

    @property
    def goodput(self) -> list[float]:
        """Tokens per second `[G]`; infinite where a model of the cost promises no time at all."""
        pairs = zip(self.tokens_G, self.seconds_G, strict=True)
        return [tokens / seconds if seconds else inf for tokens, seconds in pairs]


class Choice(NamedTuple):
    """Place of the chosen γ, which `[G]` keep every limit, and one word on why."""

    place: int
    allowed_G: tuple[bool, ...]
    reason: str


def choose(outlook: Outlook, current: int | None = None, hysteresis: float = 0.0) -> Choice:
    """The γ of most goodput among those that keep all limits; where none does, the one of least strain.

    `current` (a γ) is kept while it is allowed and within `hysteresis` of the best. Reasons: `goodput`, `no_gain`
    (γ = 0 is best), `slo` (a limit forbids what would be best), `slo_infeasible` (no γ keeps the limits).

    >>> outlook = Outlook((0, 1, 2), [1, 1.8, 2.4], [1, 1.2, 2.0])
    >>> choose(outlook)[0::2]  # 1, 1.5 and 1.2 tokens per second
    (1, 'goodput')
    """
    goodput_G, strain_G = outlook.goodput, outlook.strain_G
    free = best = goodput_G.index(max(goodput_G))
    if strain_G is None:
        allowed_G = _all(len(goodput_G))
    else:
        allowed_G = tuple([bool(one <= 1) for one in strain_G])
        if not any(allowed_G):
            least = int(np.argmin(strain_G))
            return Choice(least, tuple([place == least for place in range(len(goodput_G))]), "slo_infeasible")
        if not allowed_G[free]:
            best = int(np.where(allowed_G, goodput_G, -np.inf).argmax())
    if current is not None and current in outlook.gammas:
        kept = outlook.gammas.index(current)
        if kept != best and allowed_G[kept] and goodput_G[kept] >= (1 - hysteresis) * goodput_G[best]:
            best = kept
    if not allowed_G[free]:
        return Choice(best, allowed_G, "slo")
    return Choice(best, allowed_G, "goodput" if outlook.gammas[best] else "no_gain")


@cache
def _all(size: int) -> tuple[bool, ...]:
    """Nothing is forbidden."""
    return (True,) * size


@lru_cache(maxsize=256)
def packed(batch: int, rows: float, drafted_G: tuple[float, ...]) -> tuple[int, ...]:
    """Tokens to verify `[G]`, the roots of all `batch` rows included, where `rows` draft so much each; γ = 0 first.

    >>> packed(4, 2.0, (0.0, 0.3, 2.0))
    (4, 5, 8)
    """
    return batch, *[max(batch + ceil(rows * drafted), batch + 1) for drafted in drafted_G[1:]]


def depths(rates_M: FloatArray, reach_M: FloatArray, gammas: Sequence[int]) -> tuple[list[float], list[float]]:
    """Of a row that drafts, tokens expected to stand and tokens drafted at each of `gammas` `[G]`.

    Position j counts where drafts reach it and its token and all before it stand: with rates of .5 and everything
    reached .5, then .5 + .25.

    >>> depths(np.array([0.5, 0.5]), np.array([1.0, 1.0]), (0, 1, 2))
    ([0.0, 0.5, 0.75], [0.0, 1.0, 2.0])
    """
    survival, stood, drafted = 1.0, [0.0], [0.0]
    for rate, reach in zip(rates_M.tolist(), reach_M.tolist(), strict=True):
        survival *= rate
        stood.append(stood[-1] + reach * survival)
        drafted.append(drafted[-1] + reach)
    return [stood[gamma] for gamma in gammas], [drafted[gamma] for gamma in gammas]


def limited(view: StepView) -> bool:
    """Whether any row has a limit on its time per token."""
    return view.tpot_slo is not None and bool(np.count_nonzero(np.isfinite(view.tpot_slo)))


def strain(seconds_G: FloatArray, depth_G: FloatArray, limits_B: FloatArray, share_B: FloatArray) -> FloatArray | None:
    """`Outlook.strain_G` from step seconds and the accepted tokens expected of a usual row.

    Row b emits 1 + `share_B[b]` · `depth_G` tokens a step (share 0: it does not draft) and may take `limits_B[b]`
    seconds for each; nan is no limit. None where no row has one.

    >>> strain(np.array([0.04, 0.06]), np.array([0.0, 1.0]), np.array([0.05, np.nan]), np.array([1.0, 1.0])).round(3)
    array([0.8, 0.6])
    """
    bound_B = np.isfinite(limits_B)
    bound = np.count_nonzero(bound_B)
    if not bound:
        return None
    if bound < len(bound_B):
        limits_B, share_B = limits_B[bound_B], share_B[bound_B]
    slowest_G = (limits_B + (limits_B * share_B) * depth_G[:, None]).min(axis=1)
    strain_G: FloatArray = seconds_G / slowest_G
    return strain_G
