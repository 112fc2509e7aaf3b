"""`AdaSD` on the bundled engine: entropy stop, acceptance by distance, exactness where nobody consented."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from adaptive import AdaptiveController
from adaptive.requests import Request, RequestStats, Sampling
from engine.core import LLMEngine
from policies import AdaSD
from tests.engine.heads import HeadSpec, TrainedHeads
from tests.engine.test_model_drafter import ITSELF, NEAR
from tests.engine.tiny import TINY, near_weights, reference_greedy, run_all, tiny_engine, tokens_of

Version = Literal["v1", "v2"]
PROMPTS = [[1, 2, 3], [4, 5], [9, 9, 3], [7, 8]]
LENGTH = 60
WEIGHTS = dict(ITSELF.weights)
DRAFT = replace(NEAR, weights=near_weights(TINY, noise=0.25))


def wanted(allow: list[bool]) -> list[Request]:
    """Greedy and sampled in turn."""
    return [
        Request(prompt, Sampling(LENGTH, 0.8 * (place % 2), seed=place), id=str(place), allow_lossy=allowed)
        for place, (prompt, allowed) in enumerate(zip(PROMPTS, allow, strict=True))
    ]


def engine_of(backend: str = "eager") -> LLMEngine:
    return tiny_engine(max_batch=4, max_gamma=6, draft_model=DRAFT, backend=backend)


def serve(
    policy: AdaSD, allow: list[bool], backend: str = "eager"
) -> tuple[dict[str, list[int]], dict[str, RequestStats], AdaptiveController]:
    engine = engine_of(backend)
    controller = AdaptiveController(engine, policy=policy, allow_lossy=True)
    outputs = run_all(engine, wanted(allow))
    stats = {name: parts[-1].stats for name, parts in outputs.items()}
    told = {name: one for name, one in stats.items() if one is not None}
    assert len(told) == len(PROMPTS)
    return {name: tokens_of(parts) for name, parts in outputs.items()}, told, controller


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_it_accepts_beyond_the_exact_rule_once_it_has_seen_enough(version: Version) -> None:
    tokens, stats, controller = serve(AdaSD(version=version), [True, True, False, False])
    totals = controller.stats()
    assert totals.reasons["cold"] > 0
    assert totals.reasons[f"js_{version}"] > 0
    assert totals.clamped == {}
    assert totals.policy_errors == {}
    assert stats["0"].lossy_accepted + stats["1"].lossy_accepted == totals.lossy_accepted > 0
    assert totals.divergence_spent == pytest.approx(sum(one.divergence_spent for one in stats.values()))
    assert totals.divergence_spent > 0
    assert 0 < totals.metrics["exact_share"] < 1
    # who did not consent gets plain decoding's tokens, beside those who did
    assert tokens["2"] == reference_greedy(TINY, WEIGHTS, PROMPTS[2], LENGTH)
    assert (stats["2"].lossy_accepted, stats["3"].divergence_spent) == (0, 0)
    assert tokens["0"] != reference_greedy(TINY, WEIGHTS, PROMPTS[0], LENGTH)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_late_equals_eager(version: Version) -> None:
    allow = [True, True, True, False]
    assert serve(AdaSD(version=version), allow, "late")[0] == serve(AdaSD(version=version), allow)[0]


def test_drafts_end_where_the_drafter_is_unsure() -> None:
    *_, controller = serve(AdaSD(generation_only=True), [True] * 4)
    stats = controller.stats()
    assert stats.drafted < stats.row_steps * 5, "the threshold cuts drafts short"
    assert stats.lossy_accepted == 0
    assert stats.metrics == {}


def test_generation_only_is_lossless() -> None:
    tokens, _, _ = serve(AdaSD(generation_only=True), [True] * 4)
    for place in (0, 2):
        assert tokens[str(place)] == reference_greedy(TINY, WEIGHTS, PROMPTS[place], LENGTH)


def test_nobodys_consent_leaves_all_rows_exact() -> None:
    tokens, stats, controller = serve(AdaSD(), [False] * 4)
    for place in (0, 2):
        assert tokens[str(place)] == reference_greedy(TINY, WEIGHTS, PROMPTS[place], LENGTH)
    assert not any(one.lossy_accepted for one in stats.values())
    assert controller.stats().metrics["exact_share"] == 1.0


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_heads_are_refused_with_the_reason(kind: Literal["medusa", "eagle3"]) -> None:
    engine = tiny_engine(draft_model=TrainedHeads(HeadSpec(kind)))
    with pytest.raises(ValueError, match=r"not a language model of its own.*generation_only=True"):
        AdaptiveController(engine, policy=AdaSD(), allow_lossy=True)


def test_copied_drafts_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="does not tell its entropy"):
        AdaptiveController(tiny_engine(), policy=AdaSD(), allow_lossy=True)


def test_consent_is_the_operators_first() -> None:
    with pytest.raises(ValueError, match="allow_lossy=True"):
        AdaptiveController(engine_of(), policy=AdaSD())
