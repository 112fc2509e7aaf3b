"""How much further, or less far, a class of requests gets per step than the batch it runs in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive.contract import FloatArray, IntArray

WINDOW = 400.0  # tokens expected to stand, after which a class's evidence has faded by two thirds
STRENGTH = 8.0


class ClassShares:
    """Per SLO class: draft tokens that stood over those expected of a usual row; 1 for a class not seen yet.

    >>> shares = ClassShares()
    >>> shares.learn(shares.places(("chat", "code", "code")), np.array([0, 3, 3]), expected=2.0)
    >>> shares.of(("code", "chat", "other")).round(2).tolist()  # (6 + 8) / (4 + 8), (0 + 8) / (2 + 8)
    [1.17, 0.8, 1.0]
    """

    def __init__(self) -> None:
        self._places: dict[str | None, int] = {}
        self._stood: FloatArray = np.zeros(0)
        self._expected: FloatArray = np.zeros(0)
        self._newest: tuple[Sequence[str | None], IntArray] = ((), np.zeros(0, np.int64))

    def of(self, classes: Sequence[str | None]) -> FloatArray:
        """`[B]`: the share of each row's class."""
        places = self.places(classes)
        shares: FloatArray = (self._stood + STRENGTH) / (self._expected + STRENGTH)
        return shares[places]

    def learn(self, places_B: IntArray, accepted: IntArray, expected: float) -> None:
        """One step's rows that drafted: `places` of their classes, accepted tokens, and how many were expected."""
        size = len(self._places)
        rows = np.bincount(places_B, minlength=size)
        keep = np.maximum(1 - rows * expected / WINDOW, 7 / 8)
        self._expected = keep * self._expected + rows * expected
        self._stood = keep * self._stood + np.bincount(places_B, weights=accepted, minlength=size)

    def places(self, classes: Sequence[str | None]) -> IntArray:
        """A number for each row's class `[B]`; the same batch as before is not looked up again."""
        before, places_B = self._newest
        if classes == before:
            return places_B
        known = self._places
        for name in classes:
            known.setdefault(name, len(known))
        missing = len(known) - len(self._stood)
        self._stood = np.append(self._stood, np.zeros(missing))
        self._expected = np.append(self._expected, np.zeros(missing))
        places_B = np.array([known[name] for name in classes], dtype=np.int64)
        self._newest = (classes, places_B)
        return places_B
