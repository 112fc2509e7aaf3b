"""`AdaSD`: when drafting stops, what acceptance is asked for, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptive.check import check_policy
from adaptive.contract import (
    AcceptanceKind,
    Capabilities,
    Decision,
    DrafterCaps,
    DraftStop,
    FloatArray,
    Signal,
    StepReport,
    StepView,
)
from policies import AdaSD
from policies.adasd import NEVER
from tests.policies.steps import report, view

ALL = frozenset[Signal]({"entropy", "top_prob", "js"})
LM = DrafterCaps("lm", 16, signals=ALL)
EAGLE = DrafterCaps("eagle", 16, signals=ALL)
CAPS = Capabilities(
    tuple(range(17)),
    (1, 2, 4, 8, 64),
    {"model": LM},
    acceptances=frozenset({AcceptanceKind.STANDARD, AcceptanceKind.JS}),
)


def bound(policy: AdaSD) -> AdaSD:
    policy.bind(CAPS)
    return policy


def told(accepted: list[int], gamma: int, entropy: float | FloatArray, js: float | FloatArray) -> StepReport:
    shape = (len(accepted), gamma)
    signals: dict[Signal, FloatArray] = {
        "entropy": np.broadcast_to(np.asarray(entropy, float), shape),
        "js": np.broadcast_to(np.asarray(js, float), shape),
    }
    return replace(report(accepted, gamma), signals=signals)


def teach(policy: AdaSD, steps: int, seen: StepView, decision: Decision) -> None:
    """Row 0 accepts one token at distance .15 and rejects the next at .49, with entropies 1 and 3."""
    for _ in range(steps):
        made = told([1], 2, np.array([[1.0, 3.0]]), np.array([[0.15, 0.49]]))
        policy.learn(seen, decision, made)


def stop_of(decision: Decision) -> FloatArray:
    stop = decision.draft_stop
    assert isinstance(stop, DraftStop)
    assert isinstance(stop.threshold, np.ndarray)
    return stop.threshold


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_it_keeps_the_contract(version: str) -> None:
    wide = replace(CAPS, batch_buckets=(1, 8, 64), lag=1)
    assert check_policy(lambda: AdaSD(version="v1" if version == "v1" else "v2"), (wide,))


def test_drafts_to_the_window_until_something_was_rejected() -> None:
    policy = bound(AdaSD(window=12))
    decision = policy.decide(view(2))
    assert (decision.gamma, decision.reason) == (12, "cold")
    assert stop_of(decision).tolist() == [NEVER, NEVER]
    assert decision.draft_stop is not None
    assert decision.draft_stop.signal == "entropy"


def test_the_threshold_is_the_mean_entropy_of_first_rejections() -> None:
    policy = bound(AdaSD(prior_weight=1.0))
    # row 0: one stood, so the second token, entropy 2, was rejected; row 1: the first, entropy 5. No more.
    entropy = np.array([[1.0, 2.0, 9.0], [5.0, 9.0, 9.0]])
    policy.learn(view(2), Decision(3), told([1, 0], 3, entropy, 0.5))
    # over all 3.5; row 0: (2 + 3.5) / 2, row 1: (5 + 3.5) / 2, a new row: 3.5
    np.testing.assert_allclose(stop_of(policy.decide(view(3))), [2.75, 4.25, 3.5])
    policy.learn(view(2), Decision(3), told([3, 3], 3, entropy, 0.5))
    np.testing.assert_allclose(stop_of(policy.decide(view(3))), [2.75, 4.25, 3.5])
    policy.forget([1])
    np.testing.assert_allclose(stop_of(policy.decide(view(2))), [2.75, 3.5])


def test_version_1_accepts_below_the_midpoint_of_the_means() -> None:
    policy = bound(AdaSD(version="v1"))
    seen = view(1)
    teach(policy, 7, seen, Decision(2))
    assert policy.decide(seen).acceptance.lossless, "seven of each are too few"
    teach(policy, 1, seen, Decision(2))
    decision = policy.decide(seen)
    assert (decision.acceptance.kind, decision.reason) == (AcceptanceKind.JS, "js_v1")
    # the paper's example: (.15 + .49) / 2 = .32
    np.testing.assert_allclose(np.asarray(decision.acceptance.params["threshold"]), [0.32])
    assert decision.acceptance.params["epsilon"] == 1e-4


def test_version_2_hands_over_a_table_for_each_row() -> None:
    policy = bound(AdaSD())
    rng = np.random.default_rng(0)
    for _ in range(30):
        js = np.stack([rng.beta(2, 8, 1), rng.beta(6, 4, 1)], axis=1)
        policy.learn(view(1), Decision(2), told([1], 2, 1.0, js))
    decision = policy.decide(view(2))
    table = np.asarray(decision.acceptance.params["table"])
    assert (decision.reason, table.shape) == ("js_v2", (2, 33))
    assert table[0, 5] > 0.9  # at distance .16
    assert table[0, 22] < 0.1  # at distance .69


def test_without_verification_it_is_lossless() -> None:
    policy = AdaSD(generation_only=True)
    needs = policy.bind(CAPS)
    assert all(kind.lossless for kind in needs.acceptances)
    assert needs.signals == {"entropy"}
    teach(policy, 50, view(1), Decision(2))
    decision = policy.decide(view(1))
    assert (decision.acceptance.lossless, decision.reason) == (True, "entropy")
    assert stop_of(decision).tolist() == [3.0]


def test_the_share_that_the_exact_rule_decided_is_reported() -> None:
    policy = bound(AdaSD())
    assert np.isnan(policy.exact_share)
    seen = view(1)
    teach(policy, 10, seen, Decision(2))
    assert policy.exact_share == 1.0
    lossy = policy.decide(seen)
    teach(policy, 10, seen, lossy)
    assert policy.exact_share == 0.5
    teach(policy, 20, replace(seen, allow_lossy=np.array([False])), lossy)
    assert policy.exact_share == 0.75


def test_what_was_not_judged_or_not_told_is_not_learnt() -> None:
    policy = bound(AdaSD())
    policy.learn(view(1), Decision(2), report([1], 2))
    dead = replace(told([0], 2, 4.0, 0.5), live=np.array([False]))
    policy.learn(view(1), Decision(2), dead)
    policy.learn(view(1), Decision(2), told([0], 2, np.nan, np.nan))
    assert stop_of(policy.decide(view(1))).tolist() == [NEVER]
    assert policy.cold


@pytest.mark.parametrize(
    ("caps", "reason"),
    [
        (replace(CAPS, drafters={}), "no drafter"),
        (replace(CAPS, drafters={"ngram": DrafterCaps("ngram", 8)}), "does not tell its entropy"),
        (replace(CAPS, drafters={"eagle": EAGLE}), "'eagle', not a language model.*generation_only=True"),
        (replace(CAPS, drafters={"model": replace(LM, shared_vocab=False)}), "does not share the target's vocabulary"),
        (replace(CAPS, acceptances=frozenset({AcceptanceKind.STANDARD})), "no 'js' acceptance.*generation_only=True"),
    ],
)
def test_what_it_can_not_work_with_is_refused_with_the_reason(caps: Capabilities, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AdaSD().bind(caps)


def test_of_several_drafters_the_first_that_will_do_is_asked_for() -> None:
    policy = AdaSD()
    needs = policy.bind(replace(CAPS, drafters={"eagle": EAGLE, "model": LM}))
    assert needs.drafters == {"model"}
    assert policy.decide(view(1)).drafter == "model"
    AdaSD(generation_only=True).bind(replace(CAPS, drafters={"eagle": EAGLE}))


def test_mistakes_name_the_value() -> None:
    with pytest.raises(ValueError, match="window=0"):
        AdaSD(window=0)
    with pytest.raises(ValueError, match="version='v3'"):
        AdaSD(version="v3")  # type: ignore[arg-type]
