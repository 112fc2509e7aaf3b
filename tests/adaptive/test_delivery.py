"""Outputs reach who waits for them, and nothing is remembered of a request that has ended."""

from __future__ import annotations

from collections import deque

from adaptive.delivery import Delivery
from adaptive.requests import Output


def test_leaving_before_the_last_output_is_read_leaves_nothing_behind() -> None:
    delivery, inbox = Delivery(), deque[Output]()
    delivery.claim("a", inbox)
    delivery.route([Output("a", (1,), "x", "length", None, None)])
    delivery.abandon("a")
    again = Output("a", (2,), "y", None, None, None)
    delivery.route([again])
    assert delivery.collect() == [again]
    assert len(inbox) == 1


def test_what_still_comes_of_an_abandoned_request_is_dropped() -> None:
    delivery, inbox = Delivery(), deque[Output]()
    delivery.claim("a", inbox)
    delivery.abandon("a")
    delivery.route([Output("a", (1,), "x", None, None, None), Output("a", (), "", "cancelled", None, None)])
    assert (list(inbox), delivery.collect()) == ([], [])
