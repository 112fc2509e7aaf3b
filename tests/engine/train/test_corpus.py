from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from engine.train.batches import epoch, pad
from engine.train.corpus import Corpus, Document, clip, is_held_out
from engine.train.draft_vocab import DraftVocab, coverage, frequent_tokens, needed_tokens
from tests.engine.train.tiny_school import CONFIG, END, random_documents, tiny_tokenizer


def same(one: Document, other: Document) -> bool:
    facts = [(doc.ids.tolist(), doc.answer_start, doc.task, doc.greedy, doc.held_out) for doc in (one, other)]
    return facts[0] == facts[1]


def test_a_corpus_comes_back_as_it_was(tmp_path: Path) -> None:
    corpus = Corpus([*random_documents(5, 20), *random_documents(3, 8, task="a longer name")])
    corpus.save(tmp_path / "text.npz")
    loaded = Corpus.load(tmp_path / "text.npz")
    assert all(same(one, other) for one, other in zip(corpus, loaded, strict=True))
    assert loaded.summary()["chat"] == {"documents": 5, "tokens": 100, "answer_tokens": 45, "held_out": 2}


def test_a_corpus_can_be_cut_to_a_size(tmp_path: Path) -> None:
    Corpus(random_documents(5, 20)).save(tmp_path / "text.npz", most_tokens=70)
    assert len(Corpus.load(tmp_path / "text.npz")) == 3


def test_dialogues_without_a_held_out_part_get_one(tmp_path: Path) -> None:
    documents = random_documents(400, 6)
    Corpus(documents).save(tmp_path / "text.npz")
    with np.load(tmp_path / "text.npz") as file:
        np.savez(tmp_path / "older.npz", **{name: file[name] for name in file.files if name != "held_out"})
    held = Corpus.load(tmp_path / "older.npz").part(held_out=True)
    assert 4 <= len(held) <= 40
    again = Corpus.load(tmp_path / "older.npz").part(held_out=True)
    assert all(same(one, other) for one, other in zip(held, again, strict=True))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="not a file of training text"):
        Corpus.load(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", ids=np.zeros(3))
    with pytest.raises(ValueError, match="no array 'offsets'"):
        Corpus.load(tmp_path / "other.npz")


def test_a_source_is_held_out_or_not_once_for_all() -> None:
    chosen = [is_held_out(f"module {number}") for number in range(2000)]
    assert 40 < sum(chosen) < 130
    assert chosen == [is_held_out(f"module {number}") for number in range(2000)]


def test_clipping_drops_what_has_no_answer_left() -> None:
    short, long = Document(np.arange(4), 2, "a"), Document(np.arange(9), 6, "a")
    assert [len(one) for one in clip([short, long], 5)] == [4]
    assert [len(one) for one in clip([short, long], 8)] == [4, 8]


def test_padding_is_never_an_answer() -> None:
    batch = pad([Document(np.arange(1, 4), 1, "a"), Document(np.arange(1, 41), 30, "a")], "cpu")
    assert batch.tokens_BT.shape == (2, 64)
    assert batch.answer_BT.sum(1).tolist() == [2, 10]
    assert batch.tokens_BT[0, 3:].sum() == 0


def test_an_epoch_has_every_document_once_in_batches_that_fit() -> None:
    documents = [Document(np.full(length, length), 0, "a") for length in range(1, 90)]
    for rng in (None, random.Random(1)):
        batches = list(epoch(documents, 300, "cpu", rng))
        seen = sorted(int(row.max()) for batch in batches for row in batch.tokens_BT)
        assert seen == list(range(1, 90))
        assert all(batch.tokens_BT.numel() <= 300 for batch in batches)
    first = [batch.tokens_BT.shape for batch in epoch(documents, 300, "cpu", random.Random(1))]
    assert first == [batch.tokens_BT.shape for batch in epoch(documents, 300, "cpu", random.Random(1))]
    assert first != [batch.tokens_BT.shape for batch in epoch(documents, 300, "cpu", random.Random(2))]


def test_the_draft_vocabulary_is_the_frequent_and_the_needed() -> None:
    tokenizer = tiny_tokenizer()
    words = [token for token in range(CONFIG.vocab_size) if len(tokenizer.token_bytes([token])) > 1]
    text = np.array([words[0]] * 5 + [words[1]] * 3 + [words[2]])
    needed = needed_tokens(tokenizer, CONFIG.vocab_size)
    assert END in needed
    assert {len(tokenizer.token_bytes([token])) for token in needed} == {0, 1}
    vocab = frequent_tokens(text, tokenizer, CONFIG.vocab_size, len(needed) + 2)
    assert set(vocab.ids_S.tolist()) == needed | {words[0], words[1]}
    assert coverage(vocab, text) == 8 / 9
    assert vocab.index_V[vocab.ids_S].tolist() == list(range(vocab.size))
    with pytest.raises(ValueError, match="distinct ids"):
        DraftVocab.of(vocab.ids_S[[0, 0]], CONFIG.vocab_size)
