"""A step cut short anywhere (Ctrl-C, an error from below) costs no request a token."""

from __future__ import annotations

from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

from adaptive.requests import Output, Request, Sampling
from engine import LLMEngine
from tests.engine.tiny import TINY, Cycling, random_weights, reference_greedy, tiny_engine, tokens_of

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
