"""Where an arm's greedy answer leaves plain decoding's: were the two tokens all but equally likely there?

Kernels round differently when more tokens share a product, and every library rounds in its own way. That can swap two
tokens whose logits lie closer than the rounding; anything else is a wrong token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from adaptive.benchmark.agreement import Tokens, first_difference
from adaptive.benchmark.client import ask
from adaptive.benchmark.measure import Measurement
from adaptive.benchmark.prompts import PromptItem
from adaptive.benchmark.summary import BASELINE, differing_answers
from adaptive.contract import Engine, Policy
from adaptive.controller import AdaptiveController
from adaptive.requests import MAX_LOGPROBS, Sampling

NEAR_TIE = 1e-3
"""Logits closer than this may be swapped by rounding in float32."""

Gap = Callable[[str, Tokens, int, int], float]
"""How far apart two tokens' logits are after a prompt, by its id, and the beginning of an answer."""


def count_near_ties(results: Sequence[Measurement], label: str, gap: Gap) -> int:
    """Requests that leave plain decoding's answer, always at a near tie."""
    answers = differing_answers(results, label)
    return sum(all(_is_near_tie(prompt, *pair, gap) for pair in pairs) for prompt, pairs in answers.items())


def _is_near_tie(prompt: str, plain: Tokens, other: Tokens, gap: Gap) -> bool:
    place = first_difference(plain, other)
    return place is not None and gap(prompt, plain[:place], plain[place], other[place]) < NEAR_TIE


def make_gap(engine: Engine, plain: Policy, prompts: Mapping[str, Sequence[int]]) -> Gap:
    """Asks the engine itself, decoding by `plain`. `prompts` are token ids by prompt id."""

    def gap(prompt: str, begun: Tokens, one: int, other: int) -> float:
        item = PromptItem(prompt, [*prompts[prompt], *begun])
        sampling = Sampling(max_tokens=1, logprobs=MAX_LOGPROBS, ignore_eos=True)
        (answer,) = ask(AdaptiveController(engine, policy=plain.clone()), [item], sampling)
        likely = dict(answer.logprobs[0].top)
        return abs(likely.get(one, math.inf) - likely.get(other, -math.inf))

    return gap


def near_ties(results: Sequence[Measurement], gap: Gap) -> dict[str, int]:
    """Per arm, how many of its differing requests differ by near ties only."""
    labels = dict.fromkeys(result.arm for result in results if result.arm != BASELINE)
    return {label: count_near_ties(results, label, gap) for label in labels}
