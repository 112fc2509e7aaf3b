"""Speculation changes no token of a greedy answer and no probability of a sampled one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.contract import Policy
from adaptive.requests import Sampling
from engine.sampling import verify
from engine.sampling.distribution import choose
from policies import AdaSpec, EmaTiers, Fixed
from tests.engine.greedy import Arrival, check_course, check_greedy
from tests.engine.joint_law import joint_law, p_value, sampled_answers
from tests.engine.tiny import Cycling, tiny_engine


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize(
    "policy", [Fixed(0), Fixed(1), Fixed(5), EmaTiers(), AdaSpec()], ids=["0", "1", "5", "ema", "adaspec"]
)
def test_greedy_equals_plain_decode(policy: Policy, batch: int) -> None:
    engine = tiny_engine(max_batch=batch)
    controller = AdaptiveController(engine, policy=policy.clone())
    check_greedy(engine)
    assert not controller.stats().policy_errors


@settings(max_examples=30, deadline=None)
@given(
    gammas=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    arrivals=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=10),
)
def test_greedy_survives_any_course_of_gamma_arrivals_and_cancels(gammas: list[int], arrivals: list[Arrival]) -> None:
    engine = tiny_engine(max_batch=3)
    engine.attach(Cycling(gammas))
    check_course(engine, arrivals)


# --- sampling: the joint law of four tokens ------------------------------------------------------------------------


@pytest.mark.parametrize("gammas", [(0,), (1,), (3,), (3, 1), (0, 2, 1, 3)], ids=str)
def test_sampling_follows_the_exact_joint_law(gammas: tuple[int, ...]) -> None:
    sampling = Sampling(temperature=0.9)
    assert p_value(sampled_answers(gammas, sampling, 3), joint_law(sampling, 3)) > 1e-3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.4, top_k=2),
        Sampling(temperature=1.2, top_p=0.8),
        Sampling(temperature=1, top_k=3, top_p=0.9),
    ],
    ids=["top-k", "top-p", "both"],
)
def test_filtered_sampling_follows_the_exact_joint_law(sampling: Sampling) -> None:
    assert p_value(sampled_answers((2, 3), sampling, 3), joint_law(sampling, 3)) > 1e-3


def test_a_biased_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrawing from p itself after a rejection, not from p without the draft, must not pass."""

    def biased(
        probs_NV: Tensor,
        grid_BW: Tensor,
        drafts_BG: Tensor,
        verified_B: Tensor,
        accept_BG: Tensor,
        choose_B: Tensor,
        q_BGV: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        accepted_B = verify.count_accepted(accept_BG < probs_NV[grid_BW[:, :-1], drafts_BG], verified_B)
        at_B1 = accepted_B.unsqueeze(1)
        next_B1 = choose(probs_NV[grid_BW.gather(1, at_B1).squeeze(1)], choose_B).unsqueeze(1)
        return accepted_B, torch.cat([drafts_BG, drafts_BG[:, :1]], 1).scatter(1, at_B1, next_B1)

    monkeypatch.setattr("engine.step.verify_standard", biased)
    sampling = Sampling(temperature=0.9)
    assert p_value(sampled_answers((3,), sampling, 3), joint_law(sampling, 3)) < 1e-6
