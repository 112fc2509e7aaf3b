from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engine.models.gguf_file import GgufFile
from engine.models.gguf_vocab import load_tokenizer
from engine.tokenizer import Detokenizer, Tokenizer
from tests.engine.gguf_files import SPECIAL, TOKENS, byte_tokens

SPECIAL_IDS = frozenset(range(len(SPECIAL)))


def backend() -> tokenizers.Tokenizer:
    """The library's own decoding of the tiny vocabulary."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE({text: token for token, text in enumerate(TOKENS)}, []))
    made.add_special_tokens(list(SPECIAL))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


LIBRARY = backend()
TOKENIZER = Tokenizer(LIBRARY, special_ids=SPECIAL_IDS)

token_ids = st.lists(st.integers(0, len(TOKENS) - 1), max_size=40)
# bytes of one broken or whole character in a row are rare among random tokens
utf8_ids = st.text(max_size=12).map(lambda text: [TOKENS.index(byte_tokens()[byte]) for byte in text.encode()])


@given(text=st.text())
def test_text_survives_a_round_trip(text: str) -> None:
    if not any(special in text for special in SPECIAL):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(ids=st.one_of(token_ids, utf8_ids))
def test_decode_is_the_librarys(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=True)


@given(ids=st.one_of(token_ids, utf8_ids), cuts=st.lists(st.integers(0, 40), max_size=8))
def test_pieces_concatenate_to_the_whole(ids: list[int], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    detokenizer = Detokenizer(TOKENIZER)
    parts = [detokenizer.push(ids[start:end]) for start, end in pairwise(bounds)]
    assert "".join(parts) + detokenizer.flush() == TOKENIZER.decode(ids)


def test_an_unfinished_character_is_held_back() -> None:
    first, second, third = TOKENIZER.encode("€")
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([token]) for token in (first, second, third)] == ["", "", "€"]
    assert detokenizer.push([first]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push([first, second, third]) == "€"


def test_each_token_is_looked_at_once() -> None:
    class Counting(Tokenizer):
        seen = 0

        def token_bytes(self, ids: Iterable[int]) -> bytes:
            listed = list(ids)
            Counting.seen += len(listed)
            return super().token_bytes(listed)

    detokenizer = Detokenizer(Counting(LIBRARY))
    for token in range(200):
        detokenizer.push([token])
    assert Counting.seen == 200


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert TOKENIZER.decode([len(TOKENS) + 5, *TOKENIZER.encode("hello")]) == "hello"


@pytest.mark.parametrize("text", ["naïve", "Ġ<a>", "éé", "ÿ<tool>", "日本", "<tool>"])
def test_an_added_token_is_its_own_text(text: str) -> None:
    """Even where its characters happen to be ones that stand for bytes."""
    made = backend()
    made.add_tokens([tokenizers.AddedToken(text, normalized=False)])
    added = Tokenizer(made, special_ids=SPECIAL_IDS)
    ids = added.encode(f"a {text} b")
    assert made.token_to_id(text) in ids
    assert added.decode(ids) == f"a {text} b"


def test_an_added_token_of_one_byte_character_stays_that_byte() -> None:
    made = backend()
    made.add_tokens([tokenizers.AddedToken("é", normalized=False)])
    added = Tokenizer(made, special_ids=SPECIAL_IDS)
    for text in ("\u9999", "日本"):  # the first begins with the byte that é stands for
        assert added.decode(added.encode(text)) == text


def test_no_chat_template_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="no chat template: give the prompt as plain text"):
        TOKENIZER.apply_chat([{"role": "user", "content": "hi"}])


VARIED = [
    "",
    " ",
    "Hello, world! It's 3.14159 o'clock; we'll SAY 'Don't'.",
    "12345 678 9.0e-10 0x1F ½²³Ⅷ٣٤",
    "def f(x):\n\treturn x ** 2  # héé\n\n\n    class A:\r\n        pass\n",
    "日本語テキスト と 한국어, Привет, العربية, 🎉👩‍👩‍👧 e\u0301 \u00a0 nbsp",
    "   leading and trailing   ",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>a<file_sep>",
    '{"a": [1, 2, {"b": null}], "c": "\\n"}',
    "!!!???...---___***" + "a" * 100,
]


@pytest.mark.real
def test_the_real_tokenizer_agrees_with_transformers(smollm2_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # Its conversion ignores which pre-tokenizer the file names; this is the one SmolLM2 is published with.
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, to_bytes])
    ours = load_tokenizer(GgufFile(smollm2_path))
    for text in VARIED:
        ids = ours.encode(text)
        assert ids == peer.encode(text), text
        assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=True), text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a <colour> & why?"}]
    for asked in (messages, messages[1:]):
        expected = peer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        assert ours.apply_chat(asked) == expected
    assert ours.vocab_size == len(peer)
    assert peer.eos_token_id in ours.eos_ids


def test_many_texts_are_encoded_as_each() -> None:
    texts = ["hello 123", "", "it's é"]
    for tokenizer in (TOKENIZER, Tokenizer(LIBRARY, special_ids=SPECIAL_IDS, bos_id=1)):
        assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]
