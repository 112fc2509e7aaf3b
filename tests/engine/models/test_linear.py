"""Products with few rows are filled up, which changes neither what they are nor what a row has to do with others."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.models import linear
from engine.models.fewest_rows import MOST, fewest, fewest_rows
from engine.models.linear import make_linear, prepacked

WEIGHT_OI = torch.randn((48, 32), generator=torch.Generator().manual_seed(0))
BIAS_O = torch.randn(48, generator=torch.Generator().manual_seed(1))
INPUT_NI = torch.randn((9, 32), generator=torch.Generator().manual_seed(2))

needs_onednn = pytest.mark.skipif(not prepacked("cpu", torch.float32), reason="torch was built without oneDNN")


def filled_up(monkeypatch: pytest.MonkeyPatch, count: int, bias: torch.Tensor | None = None) -> linear.Linear:
    """A product of at least `count` rows."""
    monkeypatch.setattr(linear, "WORTH_PADDING", 0)
    monkeypatch.setattr(linear, "fewest_rows", lambda dtype, threads: count)
    return make_linear(WEIGHT_OI, bias)


@needs_onednn
@pytest.mark.parametrize("bias", [None, BIAS_O], ids=["plain", "bias"])
@pytest.mark.parametrize("count", range(1, 10))
def test_filled_up_products_are_products(
    monkeypatch: pytest.MonkeyPatch, count: int, bias: torch.Tensor | None
) -> None:
    product = filled_up(monkeypatch, 5, bias)
    found_NO = product(INPUT_NI[:count])
    assert found_NO.shape == (count, 48)
    torch.testing.assert_close(found_NO, F.linear(INPUT_NI[:count], WEIGHT_OI, bias))


@needs_onednn
def test_a_row_alone_is_rounded_as_among_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    product = filled_up(monkeypatch, 5)
    among_NO = product(INPUT_NI[:5])
    for count in range(1, 5):
        assert torch.equal(product(INPUT_NI[:count]), among_NO[:count])


@needs_onednn
def test_small_matrices_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dtype: torch.dtype, threads: int) -> int:
        raise AssertionError("measured for a matrix that is not worth it")

    monkeypatch.setattr(linear, "fewest_rows", refuse)
    torch.testing.assert_close(make_linear(WEIGHT_OI)(INPUT_NI), F.linear(INPUT_NI, WEIGHT_OI))


@needs_onednn
def test_what_is_measured_is_a_count_of_rows() -> None:
    assert 1 <= fewest_rows(torch.float32, torch.get_num_threads()) <= MOST


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([10.0, 9.9, 9.8], 1), ([10.0, 10.0, 9.0, 8.0, 7.9], 4), ([10.0, 7.0, 9.0], 2), ([10.0], 1)],
)
def test_the_smallest_of_those_alike_is_taken(seconds: list[float], expected: int) -> None:
    assert fewest(seconds) == expected
