"""Where an arm's answers leave plain decoding's, and how much of them stays: what a lossy rule leaves of a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Tokens = tuple[int, ...]


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first place where both have a token and not the same one.

    >>> first_difference((1, 2, 3), (1, 5)), first_difference((1, 2), (1,))
    (1, None)
    """
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), None)


def common_share(left: Sequence[int], right: Sequence[int]) -> float:
    """The share of the longer answer before the two part; what follows has another beginning and is not comparable.

    >>> common_share((1, 2, 3, 4), (1, 2, 5, 4)), common_share((1, 2), (1, 2)), common_share((), ())
    (0.5, 1.0, 1.0)
    """
    longest, place = max(len(left), len(right)), first_difference(left, right)
    alike = min(len(left), len(right)) if place is None else place
    return alike / longest if longest else 1.0


def agreement(pairs: Iterable[tuple[Tokens, Tokens]]) -> float:
    """Mean of `common_share` over answers to the same prompts; nan without any."""
    shares = [common_share(left, right) for left, right in pairs]
    return sum(shares) / len(shares) if shares else math.nan
