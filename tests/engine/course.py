"""A course of decoding in which everything changes: γ at each step, rows that come and go, contexts, samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from tests.engine.tiny import Cycling, Shape

ORDER = [4, 2, 6, 0, 5, 7, 8, 3, 9, 1, 10]
CANCELLED = "cancelled"
REQUESTS = [
    Request([1, 2, 3, 1, 2], Sampling(max_tokens=8), id="first"),
    Request([5, 4, 5, 4, 5], Sampling(max_tokens=60), id=CANCELLED),
    Request([*ORDER * 4, *ORDER[:4]], Sampling(max_tokens=20), id="long"),
    Request([6, 7, 6], Sampling(max_tokens=8), id="plain", speculation=False),
    Request([9, 9, 3], Sampling(max_tokens=14, temperature=0.9, seed=3, logprobs=2), id="sampled"),
    Request([1, 2, 1], Sampling(max_tokens=10, temperature=1.1, top_k=4, seed=4), id="filtered"),
]


@dataclass
class Course:
    """What came of it: tokens and log-probabilities (rounded) per request, and what each step did."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    steps: list[tuple[int, list[int], list[int], list[int]]] = field(default_factory=list)


def take_course(engine: LLMEngine, gammas: Sequence[Shape], per_step: int = 2, cancel_at: int = 5) -> Course:
    """Serve `REQUESTS`, `per_step` of them joining before each step, one of them cancelled midway.

    Each step drafts the next of `gammas`, which may hold trees.
    """
    controller, course = Cycling(gammas), Course()
    engine.attach(controller)
    waiting = list(REQUESTS)
    while waiting or not engine.scheduler.idle:
        for request in waiting[:per_step]:
            engine.submit(request)
        del waiting[:per_step]
        if len(controller.reports) == cancel_at:
            engine.cancel(CANCELLED)
        for output in engine.step():
            course.tokens.setdefault(output.request_id, []).extend(output.tokens)
            found = [round(token.logprob, 3) for token in output.logprobs or ()]
            course.logprobs.setdefault(output.request_id, []).extend(found)
    for report in controller.reports:
        lists = (report.rows.tolist(), report.verified.tolist(), report.accepted.tolist())
        course.steps.append((report.gamma, *lists))
    return course
