"""Promises on the time per token, and how many of them were kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adaptive.requests import Output, Request, RequestId

WINDOW = 1000
UNCLASSED = "default"


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits on TPOT (time per output token after the first), milliseconds.

    `classes` maps a request's `slo_class` to its limit, `tpot_ms` holds for requests of no class here. A request's own
    `tpot_slo_ms` goes before both.

    >>> Slo(tpot_ms=50, classes={"code": 30}).limit_ms("code")
    30
    """

    tpot_ms: float | None = None
    classes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, limit in (("tpot_ms", self.tpot_ms), *self.classes.items()):
            if limit is not None and not (limit > 0 and math.isfinite(limit)):
                raise ValueError(f"slo {name}={limit!r} is not valid: give milliseconds per token above 0")

    def limit_ms(self, slo_class: str | None) -> float | None:
        """The limit for requests of this class; None is none."""
        return self.tpot_ms if slo_class is None else self.classes.get(slo_class, self.tpot_ms)

    def applied(self, request: Request) -> Request:
        """The request with its class's limit, unless it brings its own."""
        limit = self.limit_ms(request.slo_class)
        return request if limit is None or request.tpot_slo_ms is not None else replace(request, tpot_slo_ms=limit)


NO_LIMITS = Slo()


@dataclass(frozen=True, slots=True)
class Attainment:
    """Of the last finished requests of a class that had a limit: how many there were, and how many kept it.

    `tpot_ms` is their mean time per token; a request of one token counts as kept.
    """

    finished: int
    met: int
    tpot_ms: float

    @property
    def share(self) -> float:
        """From 0 to 1; nan before the first."""
        return self.met / self.finished if self.finished else math.nan

    def to_dict(self) -> dict[str, Any]:
        return {"finished": self.finished, "met": self.met, "share": self.share, "tpot_ms": self.tpot_ms}


class SloLedger:
    """Remembers what running requests were promised, and for each class the last `window` that finished.

    Cancelled requests are not counted.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._open: dict[RequestId, tuple[str, float]] = {}
        self._tpots: dict[str, deque[tuple[float, bool]]] = {}

    def opened(self, name: RequestId, request: Request) -> None:
        """A request was submitted under this name."""
        if request.tpot_slo_ms is not None:
            self._open[name] = (request.slo_class or UNCLASSED, request.tpot_slo_ms)

    def closed(self, outputs: Iterable[Output]) -> None:
        """What a step brought; ends are counted."""
        if not self._open:
            return
        for output in outputs:
            if not output.finished:
                continue
            promise = self._open.pop(output.request_id, None)
            if promise is None or output.stats is None or output.finish_reason == "cancelled":
                continue
            slo_class, limit = promise
            kept = output.stats.tpot_ms <= limit
            self._tpots.setdefault(slo_class, deque(maxlen=self._window)).append((output.stats.tpot_ms, kept))

    def attainment(self) -> dict[str, Attainment]:
        """By class; requests without one are under `default`."""
        return {
            name: Attainment(len(ends), sum(kept for _, kept in ends), sum(tpot for tpot, _ in ends) / len(ends))
            for name, ends in sorted(self._tpots.items())
        }


def merged(parts: Iterable[Mapping[str, Attainment]]) -> dict[str, Attainment]:
    """Several controllers' attainment as if one had served all requests."""
    by_class: dict[str, list[Attainment]] = {}
    for part in parts:
        for name, one in part.items():
            by_class.setdefault(name, []).append(one)
    return {name: _sum(ones) for name, ones in sorted(by_class.items())}


def _sum(parts: list[Attainment]) -> Attainment:
    finished = sum(one.finished for one in parts)
    tpot_ms = sum(one.tpot_ms * one.finished for one in parts) / finished if finished else math.nan
    return Attainment(finished, sum(one.met for one in parts), tpot_ms)
