"""The comparison that the real model's tests rest on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.engine.agreement import Tokens, count_near_ties, first_difference


def counting(prompts: Sequence[Tokens], lengths: Sequence[int]) -> list[Tokens]:
    return [
        [prompt[-1] + 1 + place for place in range(length)] for prompt, length in zip(prompts, lengths, strict=True)
    ]


def stumbling(prompts: Sequence[Tokens], lengths: Sequence[int]) -> list[Tokens]:
    """Counts, but takes -1 for 5 and from there on."""
    return [
        [token if token < 5 or 5 in prompt else -1 for token in answer]
        for prompt, answer in zip(prompts, counting(prompts, lengths), strict=True)
    ]


PROMPTS: list[Tokens] = [[0], [2, 3], [7]]
EXPECTED = counting(PROMPTS, [8, 8, 8])


def test_equal_answers_have_no_ties() -> None:
    assert count_near_ties(PROMPTS, EXPECTED, counting, lambda prompt: 1.0) == 0


def test_a_near_tie_is_counted_and_what_follows_compared() -> None:
    asked: list[Tokens] = []

    def gap(prompt: Tokens) -> float:
        asked.append(prompt)
        return 1e-4

    assert count_near_ties(PROMPTS[:2], EXPECTED[:2], stumbling, gap) == 2
    assert asked == [[0, 1, 2, 3, 4], [2, 3, 4]]


def test_a_difference_at_a_wide_gap_fails() -> None:
    with pytest.raises(AssertionError, match=r"token 4 is \[-1\], not \[5\], at a logit gap of 0.5"):
        count_near_ties(PROMPTS[:1], EXPECTED[:1], stumbling, lambda prompt: 0.5)


def test_an_answer_that_is_cut_short_fails() -> None:
    def cut(prompts: Sequence[Tokens], lengths: Sequence[int]) -> list[Tokens]:
        return [answer[:3] for answer in counting(prompts, lengths)]

    with pytest.raises(AssertionError, match=r"token 3 is \[\]"):
        count_near_ties(PROMPTS, EXPECTED, cut, lambda prompt: 1.0)


@pytest.mark.parametrize(
    ("left", "right", "place"), [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1)]
)
def test_first_difference(left: Tokens, right: Tokens, place: int | None) -> None:
    assert first_difference(left, right) == place
