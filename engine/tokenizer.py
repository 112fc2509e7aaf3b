"""Text to tokens and back, whole or piece by piece."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from adaptive.requests import Messages
from engine.chat import ChatTemplate
from engine.pieces import read_pieces


class Tokenizer:
    """A model's vocabulary and chat template.

    `special_ids` are control tokens: they are recognised in text by `encode` and left out by `decode`. `bos_id` is
    put before every text that does not start with it already; None puts none. A whole text loses up to
    `leading_spaces` at its start, which SentencePiece put there.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_ids: frozenset[int] = frozenset(),
        eos_ids: frozenset[int] = frozenset(),
        bos_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self.eos_ids = eos_ids
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._backend = backend
        self.bos_id = bos_id
        self.chat_template = chat_template
        pieces = read_pieces(backend, special_ids)
        self._bytes = pieces.of_token
        self.leading_spaces = pieces.leading_spaces

    def vocabulary(self) -> dict[str, int]:
        """Token ids by the text the vocabulary has for them, special tokens included."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocab

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return self._with_bos(ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each, on all cores."""
        encoded = [one.ids for one in self._backend.encode_batch(list(texts), add_special_tokens=False)]
        return [self._with_bos(ids) for ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special tokens, and ids beyond the vocabulary (padding of the embedding), have none."""
        text = self.token_bytes(ids).decode("utf-8", errors="replace")
        return _strip(text, self.leading_spaces)

    def token_bytes(self, ids: Iterable[int]) -> bytes:
        """What `ids` stand for before UTF-8 decoding: a token may end in the middle of a character."""
        return b"".join(self._bytes.get(token, b"") for token in ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        return [self.bos_id, *ids] if self.bos_id is not None and ids[:1] != [self.bos_id] else ids

    def save(self, path: Path) -> None:
        """Write a tokenizer.json that does the same, whatever file this one came from."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        if self.bos_id is not None and backend.encode("a").ids[:1] != [self.bos_id]:
            first = backend.id_to_token(self.bos_id)
            backend.post_processor = TemplateProcessing(single=[first, "$A"], special_tokens=[(first, self.bos_id)])
        if backend.decoder is None:
            backend.decoder = tokenizers.decoders.ByteLevel()
        backend.save(str(path))

    def apply_chat(self, messages: Messages) -> str:
        """The prompt text for chat messages, up to where the assistant answers."""
        if self.chat_template is None:
            raise ValueError("this model has no chat template: give the prompt as plain text")
        return self.chat_template.render(messages)


class Detokenizer:
    """Text as tokens arrive. Pieces, with the last `flush`, concatenate to exactly `tokenizer.decode(all ids)`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._to_strip = tokenizer.leading_spaces

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` make final; a character whose bytes are not all there yet is held back."""
        text = self._decoder.decode(self._tokenizer.token_bytes(ids))
        shown = _strip(text, self._to_strip)
        self._to_strip = 0 if shown else self._to_strip - len(text)
        return shown

    def flush(self) -> str:
        """What was held back, as the replacement character; the detokenizer starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._to_strip = self._tokenizer.leading_spaces
        return rest


def _strip(text: str, spaces: int) -> str:
    """`text` without up to `spaces` of the spaces it begins with."""
    return text[:spaces].lstrip(" ") + text[spaces:]
