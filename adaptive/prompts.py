"""One prompt or many: told apart by the first element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from adaptive.requests import Prompt, Sampling


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts in `prompts`, which may itself be one.

    A string is one prompt. So is a sequence of integers (token ids) and a sequence of mappings (the messages of one
    chat). A sequence of strings or of sequences is a list of prompts, an empty one no prompts at all.

    >>> as_prompts("hello"), as_prompts([5, 6]), as_prompts(["hello", "world"]), as_prompts([[5, 6], [7]])
    (['hello'], [[5, 6]], ['hello', 'world'], [[5, 6], [7]])
    >>> as_prompts([{"role": "user", "content": "hello"}])
    [[{'role': 'user', 'content': 'hello'}]]
    """
    if isinstance(prompts, str):
        return [prompts]
    kinds = {_kind(element) for element in prompts}
    if len(kinds) > 1 and kinds != {"text", "list"}:
        raise ValueError(f"prompts mix {sorted(kinds)}: give one prompt, or a list whose elements are prompts")
    return [cast(Prompt, prompts)] if kinds & {"token", "message"} else list(cast(Sequence[Prompt], prompts))


def as_samplings(sampling: Sampling | Sequence[Sampling], count: int) -> list[Sampling]:
    """One `Sampling` for each of `count` prompts."""
    if isinstance(sampling, Sampling):
        return [sampling] * count
    if len(sampling) != count:
        raise ValueError(f"{len(sampling)} samplings do not fit {count} prompts: give one for all or one for each")
    return list(sampling)


def _kind(element: object) -> str:
    if isinstance(element, str):
        return "text"
    if isinstance(element, int | np.integer):
        return "token"
    if isinstance(element, Mapping):
        return "message"
    if isinstance(element, Sequence | np.ndarray):
        return "list"
    raise ValueError(f"{element!r} is not a prompt: give text, token ids or chat messages")
