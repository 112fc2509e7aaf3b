"""What each token stands for, in bytes, by the rule its tokenizer decodes with.

Two families are known. Byte-level vocabularies (GPT-2, Llama 3, Qwen) write each byte as one printable character.
SentencePiece-like ones (Llama 2, Mistral) write text with `▁` for a space, bytes as `<0xE2>`, and a whole text begins
with a space that is not its own. Bytes concatenate where texts would not: a token may end inside a character.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SUPPORTED = "ByteLevel, or Replace, ByteFallback, Fuse and Strip in this order"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes by token id; ids without text are absent. A whole text loses up to `leading_spaces` at its start."""

    of_token: dict[int, bytes]
    leading_spaces: int


def read_pieces(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> Pieces:
    """The pieces of all tokens that are not special. ValueError names a decoder that is not supported.

    A backend without a decoder is taken as byte-level.
    """
    steps = decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    vocab = backend.get_vocab(with_added_tokens=True)
    texts = {token: text for text, token in vocab.items() if token not in special_ids}
    if kinds in ([], ["ByteLevel"]):
        return Pieces(_byte_level_pieces(texts, frozenset(backend.get_added_tokens_decoder())), 0)
    _require_sentencepiece(steps)
    replaced = {step["pattern"]["String"]: str(step["content"]) for step in steps if step["type"] == "Replace"}
    of_token = {token: _with_byte_tokens(text, replaced) for token, text in texts.items()}
    return Pieces(of_token, sum(int(step["start"]) for step in steps if step["type"] == "Strip"))


def decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder's parts as tokenizer.json spells them, a sequence opened up; empty without a decoder."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _require_sentencepiece(steps: list[dict[str, Any]]) -> None:
    kinds = [step["type"] for step in steps]
    known = kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"])
    plain = all("String" in step["pattern"] for step in steps if step["type"] == "Replace")
    at_start = all(step["content"] == " " and step["stop"] == 0 for step in steps if step["type"] == "Strip")
    if not (known and plain and at_start):
        raise ValueError(f"tokenizer decoder {' + '.join(kinds)} is not supported; supported: {SUPPORTED}")


def _with_byte_tokens(text: str, replaced: dict[str, str]) -> bytes:
    for pattern, content in replaced.items():
        text = text.replace(pattern, content)
    byte = BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()


def _byte_level_pieces(texts: dict[int, str], added: frozenset[int]) -> dict[int, bytes]:
    """An added token is written as itself, even where all its characters are ones that stand for bytes.

    Only a single such character is the byte: every vocabulary has it, and texts need it to write other characters.
    """
    return {
        token: text.encode() if token in added and len(text) > 1 else _byte_level(text) for token, text in texts.items()
    }


def _byte_level(text: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in text)
    except KeyError:  # tokenizers without a list of added tokens have some all the same
        return text.encode()
