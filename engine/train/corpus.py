"""Text to learn from, as tokens: what the target answered to what, and which part is kept for measuring.

One `.npz` file holds it: `ids` of all documents end to end, `offsets` (document i is `ids[offsets[i]:offsets[i + 1]]`),
`answer_start` (the first answer token within a document; those before it are read, not learnt), `task`, `greedy` (the
target's own most likely tokens) and `held_out`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

HELD_OUT_SHARE = 0.04
ROUND_TO = 32  # lengths are padded to multiples of this in batches, so that few shapes occur
ARRAYS = ("ids", "offsets", "answer_start", "task", "greedy")


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One text. Tokens from `answer_start` on are to be guessed; `greedy` where the target would say exactly these."""

    ids: NDArray[np.integer]
    answer_start: int
    task: str
    greedy: bool = False
    held_out: bool = False

    def __len__(self) -> int:
        return len(self.ids)


class Corpus:
    """Documents in order. Adding is cheap."""

    def __init__(self, documents: Iterable[Document] = ()) -> None:
        self._documents = list(documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)

    def extend(self, documents: Iterable[Document]) -> None:
        self._documents.extend(documents)

    def part(self, *, held_out: bool) -> list[Document]:
        return [one for one in self._documents if one.held_out == held_out]

    def answer_tokens(self, *, held_out: bool = False) -> NDArray[np.int64]:
        """All tokens to be guessed, end to end."""
        parts = [np.asarray(one.ids[one.answer_start :], dtype=np.int64) for one in self.part(held_out=held_out)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def summary(self) -> dict[str, dict[str, int]]:
        """Per task: documents, tokens, answer tokens learnt from, documents held out."""
        rows: dict[str, dict[str, int]] = {}
        for one in self._documents:
            row = rows.setdefault(one.task, {"documents": 0, "tokens": 0, "answer_tokens": 0, "held_out": 0})
            row["documents"] += 1
            row["tokens"] += len(one)
            row["answer_tokens"] += 0 if one.held_out else len(one) - one.answer_start
            row["held_out"] += one.held_out
        return rows

    def save(self, path: Path, most_tokens: int | None = None) -> None:
        """Write the file, compressed; of a longer corpus the first documents that fit into `most_tokens`."""
        sizes = np.array([len(one) for one in self._documents], dtype=np.int64)
        ends = sizes.cumsum()
        count = len(sizes) if most_tokens is None else int(np.searchsorted(ends, most_tokens, side="right"))
        kept = self._documents[:count]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            ids=np.concatenate([np.asarray(one.ids, dtype=np.uint32) for one in kept] or [np.zeros(0, np.uint32)]),
            offsets=np.concatenate([[0], ends[:count]]),
            answer_start=np.array([one.answer_start for one in kept], dtype=np.int32),
            task=np.array([one.task for one in kept], dtype=np.str_),
            greedy=np.array([one.greedy for one in kept], dtype=np.bool_),
            held_out=np.array([one.held_out for one in kept], dtype=np.bool_),
        )

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """ValueError for a file of another kind. Without `held_out` in it, some documents are chosen for that."""
        try:
            with np.load(path, allow_pickle=False) as file:
                missing = [name for name in ARRAYS if name not in file]
                arrays = {name: file[name] for name in file.files}
        except (BadZipFile, ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a file of training text ({error}): give one that `save` wrote") from error
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}: give a file of training text")
        return cls(_documents(arrays))


def _documents(arrays: dict[str, NDArray[np.generic]]) -> Iterator[Document]:
    ids, offsets = np.asarray(arrays["ids"], dtype=np.int64), np.asarray(arrays["offsets"], dtype=np.int64)
    held = arrays.get("held_out")
    for place, (begin, end) in enumerate(pairwise(offsets)):
        document = ids[begin:end]
        kept = is_held_out(document.tobytes()) if held is None else bool(held[place])
        start, task, greedy = (arrays[name][place] for name in ("answer_start", "task", "greedy"))
        yield Document(document, int(start), str(task), bool(greedy), kept)


def is_held_out(key: bytes | str, share: float = HELD_OUT_SHARE) -> bool:
    """Whether what `key` names is kept for measuring; the same on every machine and in every run."""
    data = key.encode() if isinstance(key, str) else key
    digest = hashlib.blake2b(data, digest_size=4, person=b"held out").digest()
    return int.from_bytes(digest) < share * 2**32


def clip(documents: Sequence[Document], length: int) -> list[Document]:
    """Documents cut to `length` tokens; those with nothing left to guess are dropped."""
    cut = [
        Document(one.ids[:length], one.answer_start, one.task, one.greedy, one.held_out) if len(one) > length else one
        for one in documents
    ]
    return [one for one in cut if len(one) > one.answer_start]


def padded(length: int) -> int:
    """Places that a sequence takes in a batch.

    >>> padded(32), padded(33)
    (32, 64)
    """
    return -(-length // ROUND_TO) * ROUND_TO
