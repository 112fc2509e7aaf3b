"""Questions about code: complete, explain, document, type, test, rewrite, write from a description."""

from __future__ import annotations

import random

from engine.train.asks.ask import Ask
from engine.train.asks.snippets import Function, Snippets

ABOUT = (
    "Explain what this Python function does.\n\n{block}",
    "What does the following function do, and when would you use it?\n\n{block}",
    "Explain this code step by step.\n\n{block}",
    "Add type hints to this function.\n\n{block}",
    "Add a docstring to this function and return the whole function.\n\n{block}",
    "Write unit tests for this function.\n\n{block}",
    "Refactor this function so that it is easier to read.\n\n{block}",
    "Simplify the following Python code.\n\n{block}",
    "Is there a bug in this code? If so, fix it.\n\n{block}",
    "Add comments that explain this code.\n\n{block}",
    "Rewrite this function in JavaScript.\n\n{block}",
    "How could the performance of this function be improved?\n\n{block}",
    "Write a short summary of this code for a colleague.\n\n{block}",
)
COMPLETE = (
    "Complete this Python function.\n\n{block}",
    "Finish the implementation of the function below.\n\n{block}",
    "Write the body of this function.\n\n{block}",
    "Continue this code.\n\n{block}",
)
FROM_WORDS = (
    "Write a Python function `{name}`. {doc}.",
    "Write Python code for this: {doc}.",
    "I need a function called {name}. It should do the following: {doc}. Give me the code only.",
    "Implement `{name}` in Python with an example of how to call it. {doc}.",
)


def code_ask(snippets: Snippets, rng: random.Random) -> Ask:
    """One question about a function of the standard library."""
    function = rng.choice(snippets.functions)
    kind = rng.random()
    if kind < 0.5 or not function.doc:
        text = rng.choice(ABOUT).format(block=fenced(function.code))
    elif kind < 0.75:
        text = rng.choice(COMPLETE).format(block=fenced(_beginning(function, rng)))
    else:
        text = rng.choice(FROM_WORDS).format(name=function.name, doc=function.doc)
    return Ask("code", text, function.source)


def source_text(snippets: Snippets, rng: random.Random) -> Ask:
    """The beginning of a function or a paragraph, to go on with as plain text."""
    if rng.random() < 0.6:
        function = rng.choice(snippets.functions)
        return Ask("text", _beginning(function, rng), function.source, raw=True)
    paragraph = rng.choice(snippets.paragraphs)
    words = paragraph.text.split()
    return Ask("text", " ".join(words[: rng.randint(8, max(8, len(words) // 2))]), paragraph.source, raw=True)


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.rstrip()}\n```"


def _beginning(function: Function, rng: random.Random) -> str:
    lines = function.code.splitlines()
    return "\n".join(lines[: rng.randint(1, max(1, len(lines) // 2))])
