from __future__ import annotations

from typing import Any

import pytest

from adaptive.delivery import completion
from adaptive.prompts import as_prompts
from adaptive.requests import Output, TokenLogprob

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hello", ["hello"]),
        ("", [""]),
        ([], []),
        ([1, 2, 3], [[1, 2, 3]]),
        ((1,), [(1,)]),
        ([SYSTEM, USER], [[SYSTEM, USER]]),
        (["a", "b"], ["a", "b"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[]], [[]]),
        ([[SYSTEM, USER], [USER]], [[SYSTEM, USER], [USER]]),
        (["a", [1, 2], [USER]], ["a", [1, 2], [USER]]),
    ],
)
def test_one_prompt_is_told_from_many(prompts: Any, expected: list[Any]) -> None:
    assert as_prompts(prompts) == expected


@pytest.mark.parametrize("prompts", [[1, "a"], [USER, "a"], [[1], 2], [USER, [USER]], [None], [1.5]])
def test_mixtures_and_other_things_are_refused(prompts: Any) -> None:
    with pytest.raises(ValueError, match="prompt"):
        as_prompts(prompts)


def test_outputs_join_to_a_completion() -> None:
    logprob = TokenLogprob(5, -0.5)
    outputs = [
        Output("r", (5,), "a", logprobs=(logprob,)),
        Output("r", (), ""),
        Output("r", (6, 7), "bc", "stop", logprobs=(logprob, logprob)),
    ]
    answer = completion(outputs)
    assert (answer.text, answer.tokens, answer.finish_reason) == ("abc", (5, 6, 7), "stop")
    assert answer.logprobs == (logprob,) * 3
    assert completion([Output("r", (), "", "cancelled")]).logprobs is None
