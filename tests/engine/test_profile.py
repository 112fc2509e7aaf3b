"""Timing the bundled engine through its public interface, and the cost model that comes of it."""

from __future__ import annotations

import math

import pytest

from adaptive import AdaptiveController
from adaptive.profiling import Grid, fit_profile, held_out_error, profile_steps
from adaptive.requests import Sampling
from engine import LLMEngine, SyntheticAcceptance
from policies import AdaSpec
from tests.engine.tiny import TINY, DraftModel, near_weights, tiny_engine

GRID = Grid(batches=(1, 2, 4), contexts=(8, 40), gammas=(0, 1, 3, 5), rounds=2)


def engine_of(drafter: str) -> LLMEngine:
    draft = DraftModel(TINY, near_weights(TINY)) if drafter == "model" else None
    return tiny_engine(draft_model=draft, synthetic=SyntheticAcceptance(rate=0.0))


def prompt(length: int) -> list[int]:
    return [place % 11 for place in range(length)]


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_every_cell_is_timed_with_full_drafts(drafter: str) -> None:
    engine = engine_of(drafter)
    begun: list[str] = []
    samples = profile_steps(engine, GRID, prompt, begun.append)
    assert len(begun) == 6
    assert len(samples) == 3 * 2 * 4 * 2
    assert all(one.tokens == one.batch * (one.gamma + 1) for one in samples)
    assert all(one.step_s > 0 and math.isnan(one.draft_s) == (one.gamma == 0) for one in samples)
    assert engine.scheduler.idle, "nothing is left behind"


def test_the_profile_knows_where_it_was_made_and_is_used_there() -> None:
    engine = engine_of("ngram")
    caps = engine.capabilities()
    samples = profile_steps(engine, GRID, prompt, lambda text: None)
    cost = fit_profile(samples, caps, "here")
    assert cost.identity == caps.identity is not None
    assert "ngram drafter" in caps.identity.model
    assert cost.widths == caps.packed_widths == (*range(1, 17), 20, 24)
    assert math.isfinite(held_out_error(samples, caps))
    controller = AdaptiveController(tiny_engine(), policy=AdaSpec(cost=cost))
    controller.generate([prompt(9)], Sampling(max_tokens=30))
    assert not controller.stats().policy_errors
    other = tiny_engine(draft_model=DraftModel(TINY, near_weights(TINY)))
    with pytest.raises(ValueError, match=r"measured on model .*ngram drafter.*model drafter"):
        AdaptiveController(other, policy=AdaSpec(cost=cost))


def test_what_the_engine_can_not_run_is_refused() -> None:
    engine = engine_of("ngram")
    for grid, problem in (
        (Grid(gammas=(0, 9)), r"gammas=\[9\]"),
        (Grid(batches=(8,), gammas=(0, 1)), "batch 8"),
        (Grid(batches=(1,), contexts=(300,), gammas=(0, 1)), "300 tokens"),
        (Grid(batches=(4,), contexts=(94,), gammas=(0, 1)), "raise the context length"),
    ):
        with pytest.raises(ValueError, match=problem):
            profile_steps(engine, grid, prompt, lambda text: None)
    with pytest.raises(ValueError, match="plain decode"):
        Grid(gammas=(1, 2))
