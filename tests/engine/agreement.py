"""Do two ways of decoding agree, up to ties that rounding may break either way?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Tokens = list[int]
Decode = Callable[[Sequence[Tokens], Sequence[int]], list[Tokens]]
"""Greedy answers to prompts, each of at most so many tokens."""
Gap = Callable[[Tokens], float]
"""The gap between the two best logits after a prompt."""

NEAR_TIE = 1e-3


def first_difference(left: Tokens, right: Tokens) -> int | None:
    """The first place at which two answers differ; None if they are the same."""
    pairs = enumerate(zip(left, right, strict=False))
    shorter = min(len(left), len(right))
    return next((place for place, pair in pairs if pair[0] != pair[1]), None if len(left) == len(right) else shorter)


def count_near_ties(prompts: Sequence[Tokens], expected: Sequence[Tokens], decode: Decode, gap: Gap) -> int:
    """How often `decode` leaves the expected answers, each time at a near-tie; AssertionError at anything else.

    After a difference the rest is compared again, from the prompt and the expected tokens up to and including there.
    """
    ties = 0
    pending = [(list(prompt), list(answer)) for prompt, answer in zip(prompts, expected, strict=True)]
    while pending:
        answers = decode([prompt for prompt, _ in pending], [len(answer) for _, answer in pending])
        compared, pending = pending, []
        for (prompt, answer), got in zip(compared, answers, strict=True):
            place = first_difference(answer, got)
            if place is None:
                continue
            width = gap([*prompt, *answer[:place]])
            assert width < NEAR_TIE, (
                f"token {place} is {got[place : place + 1]}, not {answer[place : place + 1]}, at a logit gap of {width}"
            )
            ties += 1
            if rest := answer[place + 1 :]:
                pending.append(([*prompt, *answer[: place + 1]], rest))
    return ties
