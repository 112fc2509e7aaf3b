"""What packing promises: tokens cost what they cost, however they are spread over rows, and few of them cost little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.forward.bed import Point
from bench.forward.measure import Timings, ratio
from bench.forward.timing import Spread

BATCH = 8
GAMMA = 7
BUDGET = 20
RAGGED_LIMIT = 1.15
BUDGET_LIMIT = 0.6


@dataclass(frozen=True, slots=True)
class Claim:
    """`above` takes at most `limit` times as long as `below`."""

    text: str
    above: Point
    below: Point
    limit: float


@dataclass(frozen=True, slots=True)
class Verdict:
    claim: Claim
    ratio: Spread

    @property
    def met(self) -> bool:
        """By the median."""
        return self.ratio.median <= self.claim.limit


def make_claims(context: int) -> list[Claim]:
    """At batch 8: ragged rows up to γ = 7 against equal rows of as many tokens; 20 packed tokens against all 64."""
    claims = []
    for equal in (2, 4):
        total, rectangle = BATCH * equal, Point.rectangle(BATCH, equal, context)
        ragged = Point.ragged(BATCH, total, GAMMA + 1, context)
        text = f"{total} tokens ragged ({_rows(ragged)}) / {BATCH} rows of {equal}"
        claims.append(Claim(text, ragged, rectangle, RAGGED_LIMIT))
    full, few = Point.rectangle(BATCH, GAMMA + 1, context), Point.ragged(BATCH, BUDGET, GAMMA + 1, context)
    text = f"{BUDGET} tokens ({_rows(few)}) / the full γ = {GAMMA} rectangle of {BATCH * (GAMMA + 1)}"
    return [*claims, Claim(text, few, full, BUDGET_LIMIT)]


def points_of(claims: Sequence[Claim]) -> Iterator[Point]:
    for claim in claims:
        yield from (claim.above, claim.below)


def judge(claims: Sequence[Claim], timings: Timings) -> list[Verdict]:
    return [Verdict(claim, ratio(timings, claim.above, claim.below)) for claim in claims]


def _rows(point: Point) -> str:
    return " ".join(map(str, point.tokens))
