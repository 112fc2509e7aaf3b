from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.train.evaluate import Count, by_task, evaluate
from tests.engine.train.tiny_school import random_documents, tiny_drafter, tiny_school


def test_alpha_is_conditional_and_tau_walks() -> None:
    """Five tokens to guess, chains of two steps."""
    right = np.array([[True, True], [True, False], [False, True], [True, True], [True, True]])
    count = Count(2)
    count.add(right[None], np.ones((1, 5), dtype=np.bool_))
    found = count.result()
    # Step 1 is reached by the chains whose step 0 is right and whose second token is there: 0, 1 and 3.
    assert found.alpha == (4 / 5, 2 / 3)
    # From 0: both right, three tokens; from 3: right to the end of the text, two tokens.
    assert found.tau == 5 / 2
    assert found.chains == 5


def test_chains_in_front_of_the_answer_do_not_count() -> None:
    known = np.array([[False, True, True]])
    count = Count(1)
    count.add(np.array([[[True], [False], [True]]]), known)
    assert count.result().alpha == (0.5,)


def test_nothing_measured_is_nan() -> None:
    found = Count(2).result()
    assert all(math.isnan(rate) for rate in (*found.alpha, found.tau))
    assert found.rounded() == {"alpha": [None, None], "tau": None, "chains": 0}


def test_a_drafter_that_is_the_target_is_always_right() -> None:
    """On greedy text of the target, a draft model with all of its layers."""
    from engine.train.corpus import Document
    from engine.train.draft_model import DraftModel
    from engine.train.writer import Prompt, Writer
    from tests.engine.train.tiny_school import CONFIG, CONTEXT, weights

    school = tiny_school()
    prompts = [Prompt([5, 6, 7, 8]), Prompt([30, 2, 9])]
    answers = Writer(school.teacher, 2).write(prompts, 20)
    documents = [
        Document(np.array([*prompt.ids, *answer]), len(prompt.ids), task, greedy=True)
        for prompt, answer, task in zip(prompts, answers, ("chat", "code"), strict=True)
    ]
    copy = DraftModel(CONFIG, CONTEXT, CONFIG.num_layers).double()
    copy.copy_layers(weights(), range(CONFIG.num_layers))
    other = tiny_drafter("medusa")
    same, fresh = evaluate(school, [copy, other], by_task(documents, 64, school.device), 4)
    assert list(same) == ["all", "chat", "code"]
    assert same["all"].alpha == (1, 1, 1, 1)
    assert same["all"].tau == pytest.approx(5, abs=1)
    assert fresh["all"].alpha[0] < 1
    assert math.isnan(fresh["all"].alpha[3]), "three heads never guess a fourth token"


def test_tokens_outside_the_vocabulary_are_never_right() -> None:
    school = tiny_school(tokens=10)
    documents = [one for one in random_documents(4, 40) if (one.ids[10:] >= 10).all() or True]
    (found,) = evaluate(school, [tiny_drafter("medusa")], by_task(documents, 256, school.device), 3)
    inside = np.concatenate([one.ids[one.answer_start :] < 10 for one in documents]).mean()
    assert found["all"].alpha[0] <= inside
    assert torch.equal(school.vocab.ids_S, torch.arange(10))
