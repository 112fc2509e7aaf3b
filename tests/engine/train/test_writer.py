from __future__ import annotations

import pytest
import torch

from engine.train.writer import Prompt, Writer
from tests.engine.tiny import reference_greedy
from tests.engine.train.tiny_school import CONFIG, END, tiny_teacher, weights

LENGTHS = (3, 11, 5, 1, 8, 30)


def prompts(temperature: float = 0.0) -> list[Prompt]:
    generator = torch.Generator().manual_seed(5)
    return [
        Prompt(torch.randint(0, CONFIG.vocab_size, (length,), generator=generator).tolist(), temperature)
        for length in LENGTHS
    ]


def plain(prompt: Prompt, count: int, ends: set[int]) -> list[int]:
    answer = reference_greedy(CONFIG, weights(), list(prompt.ids), count)
    stops = [place for place, token in enumerate(answer) if token in ends]
    return answer[: stops[0] + 1] if stops else answer


@pytest.mark.parametrize("rows", [1, 4, 6])
def test_greedy_answers_are_plain_decodings(rows: int) -> None:
    written = Writer(tiny_teacher(), rows).write(prompts(), 20)
    assert written == [plain(prompt, 20, {END}) for prompt in prompts()]


def test_rows_that_end_leave_the_batch_and_change_nothing() -> None:
    """Many tokens end an answer, so that rows end at different steps and the batch shrinks."""
    teacher = tiny_teacher()
    ends = set(range(0, CONFIG.vocab_size, 9))
    teacher.tokenizer.eos_ids = frozenset(ends)
    expected = [plain(prompt, 40, ends) for prompt in prompts()]
    assert len({len(answer) for answer in expected}) > 2
    assert Writer(teacher, 6).write(prompts(), 40) == expected


def test_sampling_follows_the_seed_and_the_temperature() -> None:
    def written(seed: int, temperature: float) -> list[list[int]]:
        return Writer(tiny_teacher(), 6, seed).write(prompts(temperature), 15)

    assert written(1, 3.0) == written(1, 3.0)
    assert written(1, 3.0) != written(2, 3.0)
    assert written(1, 1e-3) == written(2, 0.0)


def test_samples_have_the_targets_law() -> None:
    """One step of many rows, against softmax with the unlikely tokens left out."""
    teacher = tiny_teacher()
    prompt = Prompt([4, 9, 11], 1.5)
    logits = teacher.decoder.logits(teacher.read(torch.tensor([prompt.ids])).hidden_BTE)[0, -1] / 1.5
    law = logits.softmax(-1)
    law = law.where(law >= 0.03 * law.max(), 0)
    law = law / law.sum()
    written = Writer(teacher, 2000, 3).write([prompt] * 4000, 1)
    counts = torch.bincount(torch.tensor(written)[:, 0], minlength=CONFIG.vocab_size)
    likely = law > 0
    assert counts[~likely].sum() == 0
    statistic = ((counts - 4000 * law)[likely] ** 2 / (4000 * law[likely])).sum()
    freedom = int(likely.sum()) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_what_can_not_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Writer(tiny_teacher(), 2).write([Prompt([])], 4)
    with pytest.raises(ValueError, match="do not fit"):
        Writer(tiny_teacher(), 2).write([Prompt([1, 2])], 500)
