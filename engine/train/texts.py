"""A user's own text as documents: files cut into pieces, some of them kept to measure on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.train.corpus import Document
from engine.train.writer import Prompt, Writer

MEASURED = 24  # pieces to go on with, at most
ANSWER_TOKENS = 48
LARGEST_FILE = 32 << 20
EVERY = 10  # one piece in so many is kept for measuring
TASK = "own text"


def read_texts(path: Path) -> list[str]:
    """The text of a file, or of all files of a folder, in order of their names; hidden and binary ones are left out.

    ValueError where there is none.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a folder of text files, or `self`")
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file() and _shown(one, path))
    texts = [text for file in files if (text := _read(file))]
    if not texts:
        raise ValueError(f"{path} holds no text: give a folder with text files (UTF-8), or `self`")
    return texts


def _shown(file: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _read(file: Path) -> str:
    if file.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{file} is larger than {LARGEST_FILE >> 20} MiB: split it into several files")
    data = file.read_bytes()
    try:
        return "" if b"\0" in data else data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return ""  # not text


def cut(texts: Sequence[Sequence[int]], length: int) -> tuple[list[Document], list[NDArray[np.int64]]]:
    """Pieces of `length` tokens: documents to learn from, and every tenth piece, which is not learnt from.

    ValueError when there are too few tokens for one of each.
    """
    pieces = [piece for text in texts for piece in _pieces(text, length)]
    kept = [piece for place, piece in enumerate(pieces) if place % EVERY == EVERY // 2]
    learnt = [piece for place, piece in enumerate(pieces) if place % EVERY != EVERY // 2]
    if not kept:
        tokens = sum(len(text) for text in texts)
        raise ValueError(f"{tokens} tokens of text are too few to learn from: give at least {EVERY * length}")
    return [Document(piece, 0, TASK) for piece in learnt], kept


def _pieces(text: Sequence[int], length: int) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(text), length):
        if len(text) - begin >= min(length, 32):
            yield np.array(text[begin : begin + length], dtype=np.int64)


def continued(kept: Sequence[NDArray[np.int64]], writer: Writer, answer_tokens: int = ANSWER_TOKENS) -> list[Document]:
    """What the target says greedily after the first half of each piece; of many pieces some, spread evenly."""
    chosen = [kept[place * len(kept) // min(MEASURED, len(kept))] for place in range(min(MEASURED, len(kept)))]
    prompts = [Prompt([int(token) for token in piece[: max(1, len(piece) // 2)]]) for piece in chosen]
    answers = writer.write(prompts, answer_tokens)
    return [
        Document(np.array([*prompt.ids, *answer]), len(prompt.ids), TASK, greedy=True, held_out=True)
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer
    ]
