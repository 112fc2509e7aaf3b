from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.sampling.distribution import choose, distribution

Law = NDArray[np.float64]
logit_rows = st.lists(st.integers(-3, 3), min_size=1, max_size=12)  # few values: ties are common


def brute_force(logits: Law, temperature: float, top_k: int, top_p: float) -> Law:
    """Written out token by token."""
    if temperature == 0:
        return np.array([float(token == np.argmax(logits)) for token in range(len(logits))])
    weights = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[:top_k] if top_k else order
    mass = sum(weights[token] for token in order)
    kept: list[int] = []
    for token in order:
        reached = sum(weights[other] for other in kept) / mass
        if top_p < 1 and reached >= top_p:
            break
        kept.append(token)
    law: Law = np.zeros(len(logits))
    law[kept] = weights[kept] / weights[kept].sum()
    return law


def ours(logits: Law, temperature: float, top_k: int, top_p: float, filtered: bool = True) -> Law:
    settings = (torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]))
    law: Law = distribution(torch.tensor(logits)[None], *settings, filtered=filtered)[0].numpy()
    return law


@given(
    logits=logit_rows,
    temperature=st.sampled_from([0.0, 0.25, 1.0, 2.0]),
    top_k=st.integers(0, 13),
    top_p=st.one_of(st.just(1.0), st.floats(0.015625, 1.0, width=32)),
)
def test_filters_equal_brute_force(logits: list[int], temperature: float, top_k: int, top_p: float) -> None:
    values = np.array(logits, dtype=np.float64)
    law = brute_force(values, temperature, top_k, top_p)
    nearby = [brute_force(values, temperature, top_k, min(1.0, top_p * shift)) for shift in (1 - 1e-9, 1 + 1e-9)]
    assume(top_p == 1 or all((other == law).all() for other in nearby))  # else rounding decides
    assert ours(values, temperature, top_k, top_p) == pytest.approx(law)


@given(logits=logit_rows, temperature=st.sampled_from([0.0, 0.25, 1.0, 2.0]))
def test_without_filters_the_short_way_is_the_same(logits: list[int], temperature: float) -> None:
    values = np.array(logits, dtype=np.float64)
    plain = ours(values, temperature, 0, 1.0, filtered=False)
    assert plain == pytest.approx(ours(values, temperature, 0, 1.0))
    assert plain == pytest.approx(brute_force(values, temperature, 0, 1.0))


def test_of_tied_tokens_the_first_are_kept() -> None:
    tied = np.array([1.0, 2.0, 2.0, 2.0])
    assert ours(tied, 1.0, 2, 1.0).tolist() == [0, 0.5, 0.5, 0]
    assert ours(tied, 0.0, 0, 1.0).tolist() == [0, 1, 0, 0]
    assert ours(np.zeros(4), 1.0, 0, 0.5).tolist() == [0.5, 0.5, 0, 0], "reaching p exactly is enough"


def test_rows_keep_their_own_settings() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 4, dtype=torch.float64)
    settings = (torch.tensor([0.0, 1.0, 1.0, 3.0]), torch.tensor([1, 2, 0, 0]), torch.tensor([0.1, 1.0, 0.5, 1.0]))
    rows = distribution(logits, *settings, filtered=True)
    for row, (temperature, top_k, top_p) in enumerate(zip(*(part.tolist() for part in settings), strict=True)):
        assert rows[row].numpy() == pytest.approx(brute_force(logits[row].numpy(), temperature, top_k, top_p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("filtered", [False, True])
def test_no_temperature_is_too_low_or_too_high(dtype: torch.dtype, filtered: bool) -> None:
    logits = torch.tensor([[-30.0, 50.0, 50.0, 20.0]] * 2, dtype=dtype)
    temperatures = torch.tensor([1e-40, 1e30])
    law = distribution(logits, temperatures, torch.tensor([0, 0]), torch.tensor([1.0, 1.0]), filtered)
    assert law.tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4]


# --- choosing --------------------------------------------------------------------------------------------------------

EDGES = [2.0**-53, 0.5, 1 - 2.0**-53]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.3, 1.0, 7.0]), min_size=1, max_size=9).filter(any),
    uniform=st.one_of(st.sampled_from(EDGES), st.floats(2.0**-53, 1 - 2.0**-53)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_token_of_weight_0_is_never_chosen(weights: list[float], uniform: float, dtype: torch.dtype) -> None:
    chosen = int(choose(torch.tensor([weights], dtype=dtype), torch.tensor([uniform], dtype=torch.float64)))
    assert weights[chosen] > 0


@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any))
def test_choices_follow_the_weights(weights: list[int]) -> None:
    """Evenly spaced uniforms must meet each token in proportion to its weight, to within one of them."""
    count = 400
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    chosen = choose(torch.tensor([weights] * count, dtype=torch.float32), uniforms)
    counts = torch.bincount(chosen, minlength=len(weights)).numpy()
    assert np.abs(counts - count * np.array(weights) / sum(weights)).max() <= 1
