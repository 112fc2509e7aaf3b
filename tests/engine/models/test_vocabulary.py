from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
from tokenizers import models

from engine.models.checkpoint import Checkpoint
from engine.models.vocabulary import same_vocabulary
from engine.tokenizer import Tokenizer
from tests.engine.tiny import TINY

WORDS = ["a", "b", "ab", "c"]


def model(name: str, words: list[str], rows: int) -> Checkpoint:
    backend = tokenizers.Tokenizer(models.BPE({word: token for token, word in enumerate(words)}, []))
    return Checkpoint(replace(TINY, vocab_size=rows), {}, Tokenizer(backend), name)


def test_embeddings_may_be_padded_differently() -> None:
    large, small = model("large", WORDS, 16), model("small", WORDS, 8)
    assert same_vocabulary(large, small) == same_vocabulary(small, large) == 4


def test_padding_that_a_file_spells_out_is_padding() -> None:
    spelled = model("spelled", [*WORDS, "[PAD4]", "[PAD5]"], 6)
    assert same_vocabulary(spelled, model("plain", WORDS, 8)) == 4


def test_no_more_ids_than_the_smaller_embedding_has_rows() -> None:
    assert same_vocabulary(model("large", WORDS, 16), model("cut", WORDS, 3)) == 3


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (["a", "b", "ba", "c"], "first at token 2, which is 'ba' to the one and 'ab' to the other"),
        (["a", "b", "ab"], "first at token 3, which is no token to the one and 'c' to the other"),
        ([*WORDS, "d"], "first at token 4, which is 'd' to the one and no token to the other"),
    ],
)
def test_other_vocabularies_are_refused_with_both_named(words: list[str], difference: str) -> None:
    with pytest.raises(ValueError, match=f"^small can not draft for large: their tokenizers differ, {difference}$"):
        same_vocabulary(model("large", WORDS, 8), model("small", words, 8))
