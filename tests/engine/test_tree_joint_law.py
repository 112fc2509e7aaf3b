"""Answers sampled with trees follow the target's joint law of four tokens, however far the drafter is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from torch import Tensor

from adaptive.contract import Acceptance, AcceptanceKind
from adaptive.requests import Sampling
from engine.sampling import tree as tree_rules
from engine.tree_links import TreeLinks
from tests.engine.joint_law import SAMPLES, SMALL, joint_law, p_value, sampled_answers
from tests.engine.tiny import DraftModel, Shape, near_weights, random_weights

SEED = 3
NEAR_SMALL = DraftModel(SMALL, near_weights(SMALL, SEED, noise=0.2))
FAR_SMALL = DraftModel(SMALL, random_weights(SMALL, seed=10))
PLAIN = Sampling(temperature=0.9)
PAIRS = (-1, -1, 0, 0, 1, 1)
SLIM = (-1, -1, 0, 2)
CHANGING: tuple[Shape, ...] = (PAIRS, 0, SLIM, 2, (-1, -1), 3)


@cache
def law_of(sampling: Sampling, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    return joint_law(sampling, SEED, prompt=prompt)


def chance(
    sampling: Sampling,
    draft: DraftModel | None,
    shapes: Sequence[Shape],
    kind: AcceptanceKind = AcceptanceKind.STANDARD,
) -> float:
    """How likely answers as far from the exact joint law of four tokens are, were they drawn from it."""
    prompt = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2] if draft is None else [1]
    answers = sampled_answers(shapes, sampling, SEED, draft, Acceptance(kind), prompt=prompt, samples=SAMPLES // 2)
    return p_value(answers, law_of(sampling, tuple(prompt)))


@pytest.mark.parametrize("draft", [NEAR_SMALL, FAR_SMALL, None], ids=["near", "far", "ngram"])
@pytest.mark.parametrize("shapes", [(PAIRS,), (SLIM,), CHANGING], ids=["pairs", "slim", "changing"])
def test_sampling_follows_the_exact_joint_law(draft: DraftModel | None, shapes: tuple[Shape, ...]) -> None:
    assert chance(PLAIN, draft, shapes) > 1e-3


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.4, top_k=2), Sampling(temperature=1.2, top_p=0.8)], ids=["top-k", "top-p"]
)
def test_filtered_sampling_follows_the_exact_joint_law(sampling: Sampling) -> None:
    assert chance(sampling, FAR_SMALL, (PAIRS, SLIM)) > 1e-3


def test_a_tree_is_exact_beside_block_verified_chains() -> None:
    assert chance(PLAIN, NEAR_SMALL, (SLIM, 3), kind=AcceptanceKind.BLOCK) > 1e-3


def test_a_biased_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the next token from p where children were refused, not from what is left of it, must not pass."""

    def biased(
        probs_NV: Tensor, grid_BW: Tensor, tokens_BT: Tensor, count_B: Tensor, accept_BX: Tensor, links: TreeLinks
    ) -> tuple[Tensor, Tensor]:
        node_B, _ = tree_rules.walk(probs_NV, grid_BW, tokens_BT, count_B, accept_BX, links)
        return node_B, probs_NV[grid_BW.gather(1, node_B.unsqueeze(1)).squeeze(1)]

    monkeypatch.setattr("engine.step.walk", biased)
    assert chance(PLAIN, FAR_SMALL, (PAIRS,)) < 1e-6


def test_a_misplaced_path_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values left where they were verified must not pass."""
    monkeypatch.setattr("engine.kv.KVCache.move_path", lambda *args: None)
    assert chance(PLAIN, NEAR_SMALL, (PAIRS,)) < 1e-6
