"""`Relaxed`: another policy's decisions, with a rule of one's choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptive.check import check_policy
from adaptive.contract import (
    Acceptance,
    AcceptanceKind,
    BoolArray,
    Capabilities,
    Decision,
    DrafterCaps,
    DraftProgress,
    IntArray,
    TreeLimits,
)
from policies import AdaSpec, EmaTiers, Fixed, FixedTree, Relaxed
from tests.policies.steps import view

KINDS = frozenset({AcceptanceKind.STANDARD, AcceptanceKind.TYPICAL})
CAPS = Capabilities((0, 1, 2, 4), (1, 8), {"ngram": DrafterCaps("ngram", 4)}, KINDS, tree=TreeLimits(4, 4, 8))


def test_it_keeps_the_contract() -> None:
    assert check_policy(lambda: Relaxed(EmaTiers(), AcceptanceKind.TYPICAL, epsilon=0.1), (CAPS,))
    stepwise = replace(CAPS, stepwise=True, ragged=True, drafters={"model": DrafterCaps("lm", 4)})
    assert check_policy(lambda: Relaxed(AdaSpec(), AcceptanceKind.TYPICAL), (stepwise,))


def test_decisions_are_the_other_policys_with_the_rule() -> None:
    policy = Relaxed(Fixed(2), AcceptanceKind.TYPICAL, epsilon=0.2)
    assert policy.bind(CAPS).acceptances == KINDS
    decision = policy.decide(view(3))
    assert decision == Decision(2, acceptance=Acceptance(AcceptanceKind.TYPICAL, {"epsilon": 0.2}), reason="fixed")
    other = policy.clone()
    assert (other.kind, other.params, other.policy is policy.policy) == (policy.kind, policy.params, False)


def test_trees_and_plain_decoding_stay_exact() -> None:
    for inner in (Fixed(0), FixedTree((-1, -1))):
        policy = Relaxed(inner, AcceptanceKind.TYPICAL)
        policy.bind(CAPS)
        assert policy.decide(view(1)).acceptance.lossless


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"typical has no parameter 'alpha': it takes \['epsilon', 'delta'\]"):
        Relaxed(Fixed(2), AcceptanceKind.TYPICAL, alpha=0.1)
    with pytest.raises(ValueError, match=r"js is not offered .* drafter \['ngram'\]: choose from"):
        Relaxed(Fixed(2), AcceptanceKind.JS).bind(CAPS)


class Asked(Fixed):
    """Takes part between draft steps."""

    def extend(self, progress: DraftProgress) -> BoolArray:
        return progress.rows > 1

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        return 7


def test_questions_on_the_way_are_passed_on() -> None:
    policy = Relaxed(Asked(2), AcceptanceKind.TYPICAL)
    progress = DraftProgress(0, np.array([1, 2]), {})
    assert policy.extend(progress).tolist() == [False, True]
    assert policy.trim(progress) == 7
