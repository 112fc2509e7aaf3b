"""Courses of greedy requests, every answer compared with plain decoding by full recomputation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from engine.models.config import ModelConfig
from tests.engine.tiny import random_weights, reference_greedy, run_all, tokens_of

PROMPTS = [[1, 2, 3, 1, 2], [4], [9, 9, 9, 9], [0, 5, 6, 0, 5, 6, 0], [10, 3], [2, 2, 7, 1, 8, 2, 2], [6] * 20, [8, 1]]
LENGTHS = [5 + 7 * place % 40 for place in range(len(PROMPTS))]
CONTEXT = 96  # of a tiny engine

Arrival = tuple[int, int, int]
"""Which prompt, how many tokens, and how many steps to run before the next one arrives."""


@cache
def longest_answer(model: ModelConfig, prompt: tuple[int, ...]) -> list[int]:
    """The greedy answer of a model with the random weights of seed 0 that fills the context."""
    return reference_greedy(model, random_weights(model), prompt, CONTEXT - len(prompt))


def plain_answer(model: ModelConfig, prompt: Sequence[int], count: int) -> list[int]:
    """What plain greedy decoding answers."""
    return longest_answer(model, tuple(prompt))[:count]


def check_greedy(engine: LLMEngine, opted_out: Collection[int] = ()) -> None:
    """Requests of different lengths join one per step and leave when done; those `opted_out` do without drafts."""
    requests = [
        Request(prompt, Sampling(max_tokens=length), id=str(place), speculation=place not in opted_out)
        for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    outputs = run_all(engine, requests, per_step=1)
    for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        assert tokens_of(outputs[str(place)]) == plain_answer(engine.model_config, prompt, length)


def check_course(
    engine: LLMEngine, arrivals: Sequence[Arrival], after_step: Callable[[LLMEngine], None] = lambda engine: None
) -> None:
    """Every third request is cancelled midway, and every fourth opts out of drafting."""
    got: dict[str, list[int]] = {}

    def step() -> None:
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.tokens)
        after_step(engine)

    for place, (prompt, length, wait) in enumerate(arrivals):
        sampling, drafts = Sampling(max_tokens=length), place % 4 != 1
        engine.submit(Request(PROMPTS[prompt], sampling, id=str(place), speculation=drafts))
        for _ in range(wait):
            step()
        if place % 3 == 2:
            engine.cancel(str(place - 1))
    while not engine.scheduler.idle:
        step()
    for place, (prompt, length, _) in enumerate(arrivals):
        tokens = got.get(str(place), [])
        assert tokens == plain_answer(engine.model_config, PROMPTS[prompt], length)[: len(tokens)]
        assert len(tokens) == length or (place + 1) % 3 == 2
