"""Values that an engine could not work with are refused where the request is made, by name."""

from __future__ import annotations

from typing import Any

import pytest

from adaptive.requests import Request, Sampling

WRONG: list[dict[str, Any]] = [
    {"max_tokens": 2.5},
    {"max_tokens": None},
    {"temperature": 1e300},
    {"temperature": "hot"},
    {"top_k": 2**63},
    {"top_p": None},
    {"seed": 0.5},
    {"stop": ["b", 5]},
    {"stop": None},
    {"stop_token_ids": ("5",)},
    {"logprobs": 1.5},
]


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_sampling_names_the_value_that_is_wrong(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=rf"^{name}="):
        Sampling(**values)


@pytest.mark.parametrize("values", [{"speculation": "no"}, {"allow_lossy": None}, {"priority": "high"}], ids=str)
def test_requests_name_the_value_that_is_wrong(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=rf"^{name}="):
        Request([1], **values)


def test_stops_may_come_from_any_iterable() -> None:
    assert Sampling(stop=(text for text in ["a", "b"])).stop == ("a", "b")  # type: ignore[arg-type]
