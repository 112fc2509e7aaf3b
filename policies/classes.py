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
    >>> shares.learn(("chat", "code", "code"), np.array([0, 3, 3]), expected=2.0)
    >>> shares.of(("code", "chat", "other")).round(2).tolist()  # (6 + 8) / (4 + 8), (0 + 8) / (2 + 8)
    [1.17, 0.8, 1.0]
    """

    def __init__(self) -> None:
        self._places: dict[str | None, int] = {}
        self._stood: FloatArray = np.zeros(0)
        self._expected: FloatArray = np.zeros(0)

    def of(self, classes: Sequence[str | None]) -> FloatArray:
        """`[B]`: the share of each row's class."""
        shares = (self._stood + STRENGTH) / (self._expected + STRENGTH)
        known = self._places
        return np.array([shares[known[name]] if name in known else 1.0 for name in classes])

    def learn(self, classes: Sequence[str | None], accepted: IntArray, expected: float) -> None:
        """One step's rows that drafted: accepted tokens `[B]`, and how many were expected of each."""
        places = self._placed(classes)
        size = len(self._places)
        rows = np.bincount(places, minlength=size)
        keep = np.maximum(1 - rows * expected / WINDOW, 7 / 8)
        self._expected = keep * self._expected + rows * expected
        self._stood = keep * self._stood + np.bincount(places, weights=accepted, minlength=size)

    def _placed(self, classes: Sequence[str | None]) -> list[int]:
        places = self._places
        for name in set(classes) - places.keys():
            places[name] = len(places)
        missing = len(places) - len(self._stood)
        if missing:
            self._stood = np.append(self._stood, np.zeros(missing))
            self._expected = np.append(self._expected, np.zeros(missing))
        return [places[name] for name in classes]
