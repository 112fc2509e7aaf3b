from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.gguf_file import GgufFile
from engine.models.gguf_vocab import load_tokenizer
from engine.tokenizer import Tokenizer
from tests.engine.gguf_files import SPECIAL, TOKENS, USER_TOKEN, TinyGguf


def make(tmp_path: Path, pre: str | None = "smollm", add_bos: bool | None = None) -> Tokenizer:
    return load_tokenizer(GgufFile(TinyGguf(pre=pre, add_bos=add_bos).write(tmp_path / "tiny.gguf")))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [TOKENS[token] for token in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "123", ["1", "2", "3"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("gpt-2", "1231", ["123", "1"]),
        ("default", "1123", ["1", "12", "3"]),
        (None, "1123", ["1", "12", "3"]),
        ("smollm", "hello w  w", ["hello", "Ġw", "Ġ", "Ġw"]),
        ("smollm", "he's", ["he", "'s"]),
        ("gpt-2", "HE'S", ["H", "E", "'", "S"]),
        ("smollm", "e\u0301", ["e", "Ì", "\u0123"]),
        ("qwen2", "e\u0301", ["Ã©"]),
    ],
)
def test_text_is_cut_as_the_named_pre_tokenizer_says(
    tmp_path: Path, pre: str | None, text: str, expected: list[str]
) -> None:
    assert pieces(make(tmp_path, pre), text) == expected


def test_llama_bpe_groups_three_digits_and_puts_bos(tmp_path: Path) -> None:
    assert pieces(make(tmp_path, "llama-bpe"), "1231") == [SPECIAL[1], "123", "1"]
    assert pieces(make(tmp_path, "llama-bpe", add_bos=False), "1231") == ["123", "1"]


def test_bos_is_put_once(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, add_bos=True)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode(SPECIAL[1] + "hello") == tokenizer.encode("hello")
    assert tokenizer.encode("") == [1]


def test_special_and_user_tokens_are_found_in_text(tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    text = f"{SPECIAL[1]}hello{USER_TOKEN}{SPECIAL[2]}"
    assert pieces(tokenizer, text) == [SPECIAL[1], "hello", USER_TOKEN, SPECIAL[2]]
    assert tokenizer.decode(tokenizer.encode(text)) == f"hello{USER_TOKEN}"


def test_end_tokens_are_the_declared_and_the_well_known(tmp_path: Path) -> None:
    assert make(tmp_path).eos_ids == {TOKENS.index("<|im_end|>"), TOKENS.index("<|endoftext|>")}


def test_vocab_size(tmp_path: Path) -> None:
    assert make(tmp_path).vocab_size == len(TOKENS)
