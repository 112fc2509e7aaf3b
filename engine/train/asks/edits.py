"""Edit tasks: a text or a piece of code, and what is to change in it. The answer is mostly a copy.

Small models disobey at times; what counts is that much of what they then write stood in the prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from engine.train.asks.ask import Ask
from engine.train.asks.code import fenced
from engine.train.asks.snippets import Function, Paragraph, Snippets
from engine.train.asks.tables import table_edit

RENAME = (
    "Rename `{old}` to `{new}` in this code and give me the complete code.\n\n{block}",
    "In the following code, change the name {old} to {new} everywhere. Do not change anything else.\n\n{block}",
    "Please rename the {kind} `{old}` to `{new}`. Return the full code.\n\n{block}",
    "Rename the {kind} `{old}` to `{new}` in the Python code below. Give back all of it.\n\n{block}",
    "{block}\n\nReplace `{old}` with `{new}` in the code above and print the whole result.",
)
RESTYLE = (
    "Reformat this code with two spaces of indentation.\n\n{block}",
    "Return this code without its comments and docstrings.\n\n{block}",
    "Add `print({old!r})` as the first line of this function and return the whole function.\n\n{block}",
    "Use double quotes for all strings in this code. Return the whole code.\n\n{block}",
    "Copy this code exactly.\n\n{block}",
    "Add a parameter `{new}=None` at the end of the function's parameters and return the full code.\n\n{block}",
)
REPLACE = (
    'Repeat this text and replace "{old}" with "{new}".\n\n{text}',
    'Copy the following text, but write "{new}" instead of "{old}".\n\n{text}',
    'In the text below, change every "{old}" to "{new}" and return the whole text.\n\n{text}',
    'Repeat the text below exactly, only with "{new}" in place of "{old}".\n\n{text}',
    '{text}\n\nRewrite the paragraph above with the word "{old}" replaced by "{new}".',
)
COPY = (
    "Repeat the following text word for word.\n\n{text}",
    "Fix the spelling mistakes in this text and return the corrected text.\n\n{text}",
    "Correct the typos in the following paragraph.\n\n{text}",
    "Proofread this text and return it with corrections.\n\n{text}",
    "Put each sentence of this text on a line of its own.\n\n{text}",
    "Rewrite this text as a bulleted list, one sentence for each bullet.\n\n{text}",
    "Copy this text and add one sentence at the end.\n\n{text}",
)
SUFFIXES = ("_value", "_data", "2", "_new", "_item", "_all", "_name", "_list", "_count", "_text")


def edit_ask(snippets: Snippets, own: list[Paragraph], rng: random.Random) -> Ask:
    """One edit of code, of prose (the target's `own` too) or of a table."""
    kind = rng.random()
    if kind < 0.42:
        function = rng.choice(snippets.functions)
        return Ask("edit", _code_edit(function, snippets.words, rng), function.source)
    if kind < 0.85:
        paragraph = rng.choice(own if own and rng.random() < 0.7 else snippets.paragraphs)
        return Ask("edit", _text_edit(paragraph, snippets.words, rng), paragraph.source)
    return Ask("edit", table_edit(snippets.words, rng), f"table {rng.getrandbits(32)}")


def _code_edit(function: Function, words: list[str], rng: random.Random) -> str:
    names = sorted(set(re.findall(r"\b[a-z_][a-z_0-9]{2,}\b", function.code)) - {"self", "def", "return", "None"})
    rename_function = rng.random() < 0.5 or not names
    old = function.name if rename_function else rng.choice(names)
    new = rng.choice(words) + "_" + rng.choice(words) if rng.random() < 0.6 else old + rng.choice(SUFFIXES)
    form = rng.choice(RENAME if rng.random() < 0.7 else RESTYLE)
    kind = "function" if rename_function else "variable"
    return form.format(old=old, new=new, kind=kind, block=fenced(function.code))


def _text_edit(paragraph: Paragraph, words: list[str], rng: random.Random) -> str:
    text = paragraph.text
    candidates = sorted(set(re.findall(r"\b[A-Za-z]{4,}\b", text)))
    if rng.random() < 0.6 and candidates:
        old = rng.choice(candidates)
        new = rng.choice(words)
        return rng.choice(REPLACE).format(old=old, new=new.capitalize() if old[0].isupper() else new, text=text)
    form = rng.choice(COPY)
    if "spelling" in form or "typos" in form or "Proofread" in form:
        text = with_typos(text, rng)
    return form.format(text=text)


def with_typos(text: str, rng: random.Random) -> str:
    """Some words with a letter doubled, dropped or swapped with its neighbour."""
    changes: tuple[Callable[[str, int], str], ...] = (
        lambda word, at: word[:at] + word[at] + word[at:],
        lambda word, at: word[:at] + word[at + 1 :],
        lambda word, at: word[:at] + word[at + 1] + word[at] + word[at + 2 :],
    )
    words = text.split(" ")
    for place, word in enumerate(words):
        if len(word) > 4 and word.isalpha() and rng.random() < 0.15:
            words[place] = rng.choice(changes)(word, rng.randint(1, len(word) - 2))
    return " ".join(words)
