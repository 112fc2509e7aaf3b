from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from adaptive.benchmark import Measurement, PolicyArm, Run, compare, make_gap, near_ties
from adaptive.benchmark.agreement import Tokens
from policies import Fixed
from tests.adaptive.cli.toy import ToyEngine
from tests.engine.tiny import TINY, random_weights, reference_logits, tiny_engine

PLAIN = PolicyArm("fixed:0", Fixed(0), ToyEngine())


def measured(repeat: int, arm: str, tokens: dict[str, Tokens], seconds: float = 1.0, task: str = "all") -> Measurement:
    return Measurement(repeat, task, arm, Run(seconds, 0.0, tokens))


@dataclass
class Asked:
    """A gap that notes what it was asked."""

    gaps: dict[tuple[int, int], float]
    asked: list[tuple[str, Tokens]] = field(default_factory=list)

    def __call__(self, prompt: str, begun: Tokens, one: int, other: int) -> float:
        self.asked.append((prompt, begun))
        return self.gaps[one, other]


def test_a_request_is_near_a_tie_only_if_all_its_differences_are() -> None:
    plain = {"a": (1, 2, 3), "b": (1, 2), "c": (4,), "d": (1, 2)}
    results = [
        measured(0, "fixed:0", plain),
        measured(1, "fixed:0", plain),
        measured(0, "other", {"a": (1, 5, 6), "b": (1, 2), "c": (7,), "d": (1,)}),
        measured(1, "other", {"a": (1, 9, 6), "b": (1, 2), "c": (7,), "d": (1, 2)}),
    ]
    close = Asked({(2, 5): 1e-4, (2, 9): 2e-4, (4, 7): 0.5})
    assert near_ties(results, close) == {"other": 1}, "a: near a tie twice; c: far from one; d: it ended too early"
    assert ("a", (1,)) in close.asked
    far_once = Asked({(2, 5): 1e-4, (2, 9): 0.1, (4, 7): 0.5})
    assert near_ties(results, far_once) == {"other": 0}


def test_the_engine_tells_how_far_apart_two_tokens_are() -> None:
    weights, prompt, begun = random_weights(TINY), [1, 2, 3], (4, 5)
    gap = make_gap(tiny_engine(weights=weights), Fixed(0), {"p": prompt})
    logits = reference_logits(TINY, weights, [*prompt, *begun])[-1]
    order = logits.argsort(descending=True).tolist()
    for one, other in ((order[0], order[1]), (order[3], order[0])):
        assert gap("p", begun, one, other) == pytest.approx(abs(float(logits[one] - logits[other])), abs=1e-5)
    assert gap("p", begun, order[0], TINY.vocab_size + 1) == math.inf


def test_arms_are_compared_within_each_repeat() -> None:
    two: dict[str, Tokens] = {"a": (1, 2)}
    results = [
        *(measured(0, arm, two, seconds, "x") for arm, seconds in (("fixed:0", 2.0), ("peer", 4.0))),
        *(measured(1, arm, two, seconds, "x") for arm, seconds in (("fixed:0", 8.0), ("peer", 8.0))),
        *(measured(0, arm, two, seconds, "y") for arm, seconds in (("fixed:0", 1.0), ("peer", 3.0))),
        *(measured(1, arm, two, seconds, "y") for arm, seconds in (("fixed:0", 1.0), ("peer", 3.0))),
    ]
    on_x, on_y, on_all = compare(results, [PLAIN], ["peer"])
    assert (on_x.task, on_y.task, on_all.task) == ("x", "y", None)
    assert (on_x.ratio.low, on_x.ratio.median, on_x.ratio.high) == (1.0, 1.5, 2.0)
    assert on_y.ratio.median == 3.0
    assert (on_all.ratio.low, on_all.ratio.high) == pytest.approx((11 / 9, 7 / 3))
    assert on_x.as_json() == {
        "task": "x",
        "policy": "fixed:0",
        "drafter": None,
        "peer": "peer",
        "ratio": 1.5,
        "ratio_min": 1.0,
        "ratio_max": 2.0,
    }


def test_one_task_is_all_of_them() -> None:
    results = [measured(0, arm, {"a": (1,)}) for arm in ("fixed:0", "peer")]
    assert [one.task for one in compare(results, [PLAIN], ["peer"])] == ["all"]
