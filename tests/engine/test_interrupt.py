"""A step cut short anywhere (Ctrl-C, an error from below) costs no request a token."""

from __future__ import annotations

from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

from adaptive.requests import Output, Request, Sampling
from engine import LLMEngine
from tests.engine.tiny import TINY, Cycling, DraftModel, random_weights, reference_greedy, tiny_engine, tokens_of

PROMPTS = {"a": [1, 2, 3, 1, 2], "b": [9, 9, 9, 9], "c": list(range(11)) * 2}


class Interrupt(TorchFunctionMode):
    """Raises KeyboardInterrupt at the n-th call into torch."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


def serve(engine: LLMEngine, interrupted_step: int, at: int) -> tuple[dict[str, list[Output]], bool]:
    """All outputs, and whether the interrupt struck."""
    outputs: dict[str, list[Output]] = {name: [] for name in PROMPTS}
    struck = False
    for name, prompt in PROMPTS.items():
        engine.submit(Request(prompt, Sampling(max_tokens=15), id=name))
    step = 0
    while not engine.scheduler.idle or step <= interrupted_step:
        try:
            if step == interrupted_step:
                with Interrupt(at):
                    got = engine.step()
            else:
                got = engine.step()
        except KeyboardInterrupt:
            struck, got = True, []
        for output in got:
            outputs[output.request_id].append(output)
        step += 1
    for output in engine.step():
        outputs[output.request_id].append(output)
    return outputs, struck


@pytest.mark.parametrize("interrupted_step", [0, 1, 4])
def test_an_interrupt_loses_nothing(interrupted_step: int) -> None:
    weights = random_weights(TINY)
    expected = {name: reference_greedy(TINY, weights, prompt, 15) for name, prompt in PROMPTS.items()}
    struck, at = True, 0
    while struck:
        engine = tiny_engine()
        engine.attach(Cycling((5, 0, 3)))
        outputs, struck = serve(engine, interrupted_step, at)
        assert {name: tokens_of(chunks) for name, chunks in outputs.items()} == expected, f"cut at operation {at}"
        assert all(chunks[-1].finish_reason == "length" for chunks in outputs.values())
        at += 37
    assert at > 70, "the step is long enough for many places to cut it"


SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
CROWD = {"first": SHARED, "second": [7, 7, 1], "high": [*SHARED, 1, 2], "last": [*SHARED, 1, 2, 5]}
LENGTHS = {"first": 24, "second": 24, "high": 6, "last": 6}
ITSELF = DraftModel(TINY, random_weights(TINY))


def serve_crowd(engine: LLMEngine, interrupted_step: int, at: int) -> tuple[dict[str, list[int]], bool]:
    """Two rows, and a third request that takes one of them, which starts as the other does."""
    outputs: dict[str, list[int]] = {name: [] for name in CROWD}
    struck = False
    for step in range(400):
        for name, arrival in (("first", 0), ("second", 0), ("high", 4), ("last", 5)):
            if step == arrival:
                sampling = Sampling(max_tokens=LENGTHS[name])
                engine.submit(Request(CROWD[name], sampling, id=name, priority=int(name == "high")))
        try:
            with Interrupt(at if step == interrupted_step else 1 << 30):
                got = engine.step()
        except KeyboardInterrupt:
            struck, got = True, []
        for output in got:
            outputs[output.request_id] += output.tokens
        if step > 5 and engine.scheduler.idle and not got:
            break
    return outputs, struck


@pytest.mark.parametrize(
    ("draft", "interrupted_step"), [(None, 4), (ITSELF, 4), (ITSELF, 5)], ids=["ngram", "model", "model, later"]
)
def test_an_interrupt_while_rows_change_hands_loses_nothing(draft: DraftModel | None, interrupted_step: int) -> None:
    weights = random_weights(TINY)
    expected = {name: reference_greedy(TINY, weights, prompt, LENGTHS[name]) for name, prompt in CROWD.items()}
    struck, at, reused = True, 0, 0
    while struck:
        engine = tiny_engine(max_batch=2, draft_model=draft)
        controller = Cycling((3, 0, 5))
        engine.attach(controller)
        outputs, struck = serve_crowd(engine, interrupted_step, at)
        assert outputs == expected, f"cut at operation {at}"
        assert engine.counts.preempted == 1
        assert engine.scheduler.free == [0, 1]
        assert not engine._sequences
        reused = engine.counts.reused_tokens
        if draft is not None:
            assert all((report.accepted == report.verified).all() for report in controller.reports)
        at += 7 if at < 90 else 173
    assert reused > 30


def test_an_interrupt_while_cancelling_still_cancels() -> None:
    engine = tiny_engine(max_batch=1)
    controller = Cycling((2,))
    engine.attach(controller)
    for name in ("first", "second"):
        engine.submit(Request([1, 2, 3], Sampling(max_tokens=9), id=name))
    engine.step()
    with pytest.raises(KeyboardInterrupt), Interrupt(0):
        engine.cancel("first")
    engine.cancel("first")
    outputs = [output for _ in range(12) for output in engine.step()]
    assert [output.finish_reason for output in outputs if output.request_id == "first"] == ["cancelled"]
    assert len(tokens_of([output for output in outputs if output.request_id == "second"])) == 9
    assert not engine._sequences
