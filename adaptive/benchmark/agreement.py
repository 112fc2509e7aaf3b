"""How much of an arm's answers plain decoding would have given: what a lossy rule leaves of a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Tokens = tuple[int, ...]


def common_share(left: Sequence[int], right: Sequence[int]) -> float:
    """The share of the longer answer before the two part; what follows has another beginning and is not comparable.

    >>> common_share((1, 2, 3, 4), (1, 2, 5, 4)), common_share((1, 2), (1, 2)), common_share((), ())
    (0.5, 1.0, 1.0)
    """
    longest = max(len(left), len(right))
    alike = next(
        (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    return alike / longest if longest else 1.0


def agreement(pairs: Iterable[tuple[Tokens, Tokens]]) -> float:
    """Mean of `common_share` over answers to the same prompts; nan without any."""
    shares = [common_share(left, right) for left, right in pairs]
    return sum(shares) / len(shares) if shares else math.nan
