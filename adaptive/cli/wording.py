"""Messages of the library in the command line's words: `context_len=5` is what `--context 5` asked for."""

from __future__ import annotations

import re

OPTIONS = {
    "context_len": "--context",
    "draft_model": "--draft-model",
    "drafter": "--drafter",
    "max_batch": "--max-batch",
    "max_tree_nodes": "--max-tree-nodes",
    "dtype": "--dtype",
    "device": "--device",
    "revision": "--revision",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "logprobs": "--logprobs",
    "ignore_eos": "--ignore-eos",
}
_NAMES = "|".join(OPTIONS)
_SETTING = re.compile(rf"(?<![\w.-])({_NAMES})=('[^']*'|\"[^\"]*\"|[^\s,;:()]+)")
_NAME = re.compile(r"(?<![\w.-])(context_len|draft_model|max_batch|max_tree_nodes|max_tokens)(?![\w=])")


def in_options(message: str) -> str:
    """Names of settings as options, values as they are typed.

    >>> in_options("context_len=5 is too short: raise context_len, or take drafter='none'")
    '--context 5 is too short: raise --context, or take --drafter none'
    """
    message = _SETTING.sub(lambda found: f"{OPTIONS[found[1]]} {_typed(found[2])}", message)
    return _NAME.sub(lambda found: OPTIONS[found[1]], message)


def _typed(value: str) -> str:
    return "none" if value == "None" else value.strip("'\"")
