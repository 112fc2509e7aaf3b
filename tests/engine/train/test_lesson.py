from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.train.batches import pad
from engine.train.corpus import Document
from engine.train.lesson import guess_loss
from engine.train.school import School
from engine.train.teacher import Features, Teacher
from tests.engine.train.tiny_school import (
    CONFIG,
    lesson_of,
    random_documents,
    tiny_drafter,
    tiny_school,
    tiny_teacher,
)

DEPTH = 3


def test_positions_are_those_before_answer_tokens() -> None:
    documents = [
        Document(np.arange(10), 5, "chat"),
        Document(np.arange(12), 0, "text"),
    ]
    lesson = lesson_of(tiny_school(), documents, [tiny_drafter("medusa")], DEPTH)
    width = lesson.batch.tokens_BT.shape[1]
    # Answer tokens 5 to 9 follow positions 4 to 8; of the second, positions before DEPTH have too little before them.
    assert lesson.rows_R.tolist() == [*range(4, 9), *(width + place for place in range(DEPTH, 11))]
    assert lesson.next_R.tolist() == [*range(5, 10), *range(DEPTH + 1, 12)]


def test_the_law_is_the_targets_own_within_the_vocabulary() -> None:
    documents = [Document(np.arange(12), 2, "chat")]
    school = tiny_school(tokens=100)
    lesson = lesson_of(school, documents, [tiny_drafter("medusa")], DEPTH)
    logits = school.teacher.decoder.logits(school.teacher.read(lesson.batch.tokens_BT).hidden_BTE)[0, lesson.rows_R]
    soft = logits.softmax(-1)[:, :100]
    sharp = torch.nn.functional.one_hot(logits.argmax(-1), CONFIG.vocab_size)[:, :100]
    torch.testing.assert_close(lesson.law_RS, (0.7 * soft + 0.3 * sharp), rtol=1e-5, atol=1e-6)
    assert (lesson.law_RS.sum(-1) < 1).all()


def test_the_loss_is_least_for_the_law_itself() -> None:
    law = torch.tensor([[0.5, 0.3, 0.1]])
    best = guess_loss((law / law.sum()).log(), law)
    normed = law / law.sum()
    torch.testing.assert_close(best, -(law * normed.log()).sum())
    assert guess_loss(torch.zeros(1, 3), law) > best
    assert guess_loss(torch.zeros(0, 3), torch.zeros(0, 3)) == 0


def test_a_batch_that_comes_again_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = Teacher.read

    def counted(self: Teacher, *args: Any) -> Features:
        reads.append(1)
        return original(self, *args)

    monkeypatch.setattr(Teacher, "read", counted)
    drafter, batch = tiny_drafter("eagle3"), pad(random_documents(2, 20), "cpu")
    school = School(tiny_teacher(), tiny_school().vocab, spare_bytes=1 << 20)
    first, second = (school.lesson(batch, [drafter], DEPTH) for _ in range(2))
    assert len(reads) == 1
    torch.testing.assert_close(first.law_RS, second.law_RS)
    school.lesson(pad(random_documents(2, 20), "cpu"), [drafter], DEPTH)
    assert len(reads) == 2
    forgetful = tiny_school()
    for _ in range(2):
        forgetful.lesson(batch, [drafter], DEPTH)
    assert len(reads) == 4
