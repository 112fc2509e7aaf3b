"""Whole-sequence training sees exactly what drafting step by step would see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.train.blocks import Past
from engine.train.drafter import TrainableDrafter
from engine.train.eagle1 import Eagle1
from engine.train.eagle3 import Eagle3
from engine.train.lesson import Lesson
from engine.train.mtp import Mtp, MtpLayer
from tests.engine.train.tiny_school import lesson_of, random_documents, tiny_drafter, tiny_school

DEPTH = 3


def one_step(drafter: TrainableDrafter, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """The next feature and the head's input over a whole sequence, by one plain causal pass."""
    if isinstance(drafter, Eagle3):
        hidden = drafter.midlayer(embedded, feature, Past())
        return hidden, drafter.norm(hidden)
    if isinstance(drafter, Mtp):
        layer = drafter.layers[0]
        assert isinstance(layer, MtpLayer)
        hidden = layer(layer.join(embedded, feature), Past())
        return hidden, layer.head_input(hidden)
    assert isinstance(drafter, Eagle1)
    hidden = drafter.layers[0](drafter.fc(torch.cat([embedded, feature], -1)), Past())
    return hidden, hidden


def first_features(drafter: TrainableDrafter, lesson: Lesson) -> Tensor:
    if isinstance(drafter, Eagle3):
        fused: Tensor = drafter.fc(torch.cat([lesson.features.taps[layer] for layer in drafter.taps], -1))
        return fused
    return lesson.features.hidden_BTE


@torch.no_grad()
@pytest.mark.parametrize("method", ["eagle3", "eagle1", "mtp"])
def test_unrolled_chains_are_step_by_step_drafting(method: str) -> None:
    drafter, school = tiny_drafter(method).eval(), tiny_school()
    lesson = lesson_of(school, random_documents(2, 20), [drafter], DEPTH)
    outputs = drafter.outputs(lesson, DEPTH)
    features, tokens = first_features(drafter, lesson), lesson.batch.tokens_BT
    for chain in (0, 4, 11):
        known = features[:, : chain + 1]
        for step in range(DEPTH):
            # True features up to the chain's place, then the drafter's own, one more each step.
            embedded = school.teacher.embed(tokens[:, 1 : chain + 2 + step])
            hidden, out = one_step(drafter, embedded, known)
            torch.testing.assert_close(outputs[step][:, chain], out[:, -1])
            known = torch.cat([known, hidden[:, -1:]], 1)


@torch.no_grad()
def test_a_draft_model_is_a_plain_decoder() -> None:
    """With all of the target's layers it says what the target says, each step one token further."""
    from engine.train.draft_model import DraftModel
    from tests.engine.train.tiny_school import CONFIG, CONTEXT, weights

    drafter, school = DraftModel(CONFIG, CONTEXT, CONFIG.num_layers).double(), tiny_school()
    drafter.copy_layers(weights(), range(CONFIG.num_layers))
    lesson = lesson_of(school, random_documents(2, 20), [drafter], DEPTH)
    for step, out in enumerate(drafter.outputs(lesson, DEPTH)):
        expected = lesson.features.hidden_BTE[:, 1 + step :]
        torch.testing.assert_close(out[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-4)  # float32 positions


@torch.no_grad()
def test_fresh_medusa_heads_repeat_the_targets_feature() -> None:
    drafter, school = tiny_drafter("medusa"), tiny_school()
    lesson = lesson_of(school, random_documents(2, 20), [drafter], DEPTH)
    for out in drafter.outputs(lesson, DEPTH):
        torch.testing.assert_close(out, lesson.features.hidden_BTE)


@torch.no_grad()
@pytest.mark.parametrize("method", ["eagle3", "eagle1", "mtp", "medusa", "draft"])
def test_no_chain_sees_a_later_token_or_feature(method: str) -> None:
    drafter, school = tiny_drafter(method).eval(), tiny_school()
    (document,) = random_documents(1, 24)
    other = document.ids.copy()
    other[16:] = (other[16:] + 1) % 200
    changed = replace(document, ids=other)
    for step in range(DEPTH):
        outputs = [
            drafter.outputs(lesson_of(school, [one], [drafter], DEPTH), DEPTH)[step][0, : 16 - 1 - step]
            for one in (document, changed)
        ]
        torch.testing.assert_close(outputs[0], outputs[1])
