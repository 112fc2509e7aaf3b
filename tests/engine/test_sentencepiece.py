"""Vocabularies with ▁ and byte tokens, as Llama 2's and Mistral's, against the library's own decoding."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from engine.tokenizer import Detokenizer, Tokenizer
from tests.engine.models.hf_folders import SP_BYTES, SP_SPECIAL, SP_TOKENS, sentencepiece

LIBRARIES = {kind: sentencepiece(kind) for kind in ("normalizer", "metaspace")}
SPECIAL_IDS = frozenset(range(len(SP_SPECIAL)))
TOKENIZERS = {kind: Tokenizer(library, special_ids=SPECIAL_IDS, bos_id=1) for kind, library in LIBRARIES.items()}
TOKENIZER = TOKENIZERS["normalizer"]

FIRST_TEXT = len(SP_SPECIAL) + len(SP_BYTES)
token_ids = st.lists(st.integers(0, len(SP_TOKENS) - 1), max_size=30)
text_ids = st.lists(st.sampled_from([*SPECIAL_IDS, *range(FIRST_TEXT, len(SP_TOKENS))]), max_size=30)
utf8_ids = st.text(max_size=12).map(lambda text: [len(SP_SPECIAL) + byte for byte in text.encode()])
texts = st.text().filter(lambda text: "▁" not in text and not any(special in text for special in SP_SPECIAL))


@pytest.mark.parametrize("kind", LIBRARIES)
@given(text=texts)
def test_ids_and_their_text_are_the_librarys(kind: str, text: str) -> None:
    ids = TOKENIZERS[kind].encode(text)
    assert ids == LIBRARIES[kind].encode(text).ids
    assert TOKENIZERS[kind].decode(ids) == LIBRARIES[kind].decode(ids, skip_special_tokens=True)


@given(text=texts)
def test_text_survives_a_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(ids=st.one_of(text_ids, utf8_ids))
def test_decode_is_the_librarys_where_bytes_are_whole(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == LIBRARIES["normalizer"].decode(ids, skip_special_tokens=True)


@given(ids=st.one_of(token_ids, utf8_ids), cuts=st.lists(st.integers(0, 30), max_size=8))
def test_pieces_concatenate_to_the_whole(ids: list[int], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    detokenizer = Detokenizer(TOKENIZER)
    for _ in range(2):  # it starts afresh after a flush
        parts = [detokenizer.push(ids[start:end]) for start, end in pairwise(bounds)]
        assert "".join(parts) + detokenizer.flush() == TOKENIZER.decode(ids)


def test_only_the_first_space_of_a_text_is_taken() -> None:
    space, letter = SP_TOKENS.index("▁"), SP_TOKENS.index("a")
    assert TOKENIZER.decode([1, space, letter, space, letter]) == "a a"
    assert TOKENIZER.decode([space, space, letter]) == " a"
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([token]) for token in (1, space, space, letter)] == ["", "", " ", "a"]


def test_a_character_in_byte_tokens_is_held_back() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    first, second, third = (SP_TOKENS.index(f"<0x{byte:02X}>") for byte in "€".encode())
    assert [detokenizer.push([token]) for token in (first, second, third)] == ["", "", "€"]


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (decoders.WordPiece(), "decoder WordPiece is not supported; supported: ByteLevel, or Replace"),
        (
            decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
            r"decoder ByteFallback \+ Fuse is not supported",
        ),
        (
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]
            ),
            r"decoder Replace \+ ByteFallback \+ Fuse \+ Strip is not supported",
        ),
    ],
    ids=["WordPiece", "no Replace", "Strip at the end"],
)
def test_other_decoders_are_refused(decoder: decoders.Decoder, message: str) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    backend.decoder = decoder
    with pytest.raises(ValueError, match=message):
        Tokenizer(backend)
