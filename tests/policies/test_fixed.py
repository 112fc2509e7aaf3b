"""The same γ, or a refusal that names what there is."""

from __future__ import annotations

import pytest

from adaptive.contract import Capabilities, Policy
from policies import Fixed
from tests.policies.steps import CAPS, view


def test_same_gamma_at_every_batch_size() -> None:
    policy = Fixed(5)
    assert policy.bind(CAPS).gammas == {bucket: (0, 5) for bucket in CAPS.batch_buckets}
    assert [policy.decide(view(size)).gamma for size in (0, 1, 64)] == [5, 5, 5]


@pytest.mark.parametrize("gamma", [2, 16])
def test_a_gamma_that_is_not_offered_is_refused(gamma: int) -> None:
    with pytest.raises(ValueError, match=rf"gamma={gamma} is not offered.*\[0, 1, 3\]"):
        Fixed(gamma).bind(Capabilities(gammas=(0, 1, 3), batch_buckets=(1,)))


def test_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma=-1"):
        Fixed(-1)


def test_is_a_policy_and_clones() -> None:
    policy = Fixed(0)
    assert isinstance(policy, Policy)
    assert policy.clone() is not policy
    assert policy.clone().gamma == 0
