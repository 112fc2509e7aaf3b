"""Small tables in one notation, to be written in another or changed a little."""

from __future__ import annotations

import json
import random

HEADS = ("name", "city", "price", "year", "count", "color", "size", "owner", "date", "score")
CHANGES = (
    "Write this table as {target}.\n\n{table}",
    "Convert the following to {target}.\n\n{table}",
    "Copy this table and add a row with made-up values.\n\n{table}",
    "Copy the following lines, sorted by the first column.\n\n{table}",
    "Copy the following lines exactly, but add 1 to each number.\n\n{table}",
    "Repeat this data, but leave out the last row.\n\n{table}",
    "Change every {head} in this data to upper case.\n\n{table}",
)
TARGETS = ("CSV", "a Markdown table", "JSON", "a numbered list", "a bulleted list", "YAML", "an HTML table")


def table_edit(words: list[str], rng: random.Random) -> str:
    """A table of random words and numbers, and what to do with it."""
    heads = rng.sample(HEADS, rng.randint(2, 4))
    rows = [[_cell(head, words, rng) for head in heads] for _ in range(rng.randint(3, 8))]
    table = rng.choice((_csv, _markdown, _json, _bullets))(heads, rows)
    return rng.choice(CHANGES).format(target=rng.choice(TARGETS), head=rng.choice(heads), table=table)


def _cell(head: str, words: list[str], rng: random.Random) -> str:
    if head in ("price", "count", "size", "score"):
        return str(rng.randint(1, 999))
    if head in ("year", "date"):
        return (
            str(rng.randint(1950, 2025)) if head == "year" else f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        )
    return rng.choice(words).capitalize() if head in ("name", "city", "owner") else rng.choice(words)


def _csv(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(",".join(row) for row in [heads, *rows])


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def _json(heads: list[str], rows: list[list[str]]) -> str:
    return json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=2)


def _bullets(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join("- " + ", ".join(row) for row in rows)
