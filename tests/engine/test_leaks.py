"""Two thousand requests of every kind come and go, and leave no row, no name and no byte behind."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType

import psutil
import pytest
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.requests import Output, Request, Sampling
from engine.core import LLMEngine
from engine.request_state import RequestState
from tests.engine.tiny import TINY, DraftModel, near_weights, random_weights, reference_greedy, tiny_engine, tokens_of

MINI = replace(TINY, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, num_kv_heads=1)
WEIGHTS = random_weights(MINI)
DRAFT = DraftModel(MINI, near_weights(MINI))
BASES = [[(7 * place * place + base) % 11 for place in range(24)] for base in range(4)]
WARM_UP = 60
MIB = 1 << 20


def random_request(dice: random.Random, name: str) -> Request:
    prompt = dice.choice(BASES)[: dice.randint(1, 24)] + [dice.randrange(11) for _ in range(dice.randint(0, 3))]
    sampling = Sampling(
        max_tokens=dice.randint(1, 8),
        temperature=dice.choice([0.0, 0.0, 0.8]),
        top_k=dice.choice([0, 0, 4]),
        seed=dice.choice([None, dice.getrandbits(40)]),
        stop_token_ids=tuple(dice.sample(range(11), dice.choice([0, 0, 1, 2]))),
        logprobs=dice.choice([None, None, None, 2]),
    )
    speculation, priority = dice.random() < 0.9, dice.choice([0, 0, 0, 1, 2])
    return Request(prompt, sampling, id=name, speculation=speculation, priority=priority, tpot_slo_ms=50.0)


@dataclass
class Load:
    """Random arrivals and cancels; keeps what came of some of the requests."""

    controller: AdaptiveController
    dice: random.Random
    kept: dict[str, tuple[Request, list[Output]]] = field(default_factory=dict)
    finished: int = 0
    cancelled: int = 0
    count: int = 0

    def serve(self, count: int, keep_every: int) -> None:
        end = self.count + count
        doomed: list[tuple[int, str]] = []
        running: set[str] = set()
        step = 0
        while self.count < end or running:
            for _ in range(min(self.dice.choice([0, 1, 1, 2, 4]), end - self.count)):
                name = f"named-{self.count}"
                request = random_request(self.dice, name)
                self.controller.engine.submit(request)
                running.add(name)
                if self.count % keep_every == 0:
                    self.kept[name] = (request, [])
                if self.dice.random() < 0.1:
                    doomed.append((step + self.dice.randint(0, 12), name))
                self.count += 1
            for due, name in doomed:
                if due == step:
                    self.controller.cancel(name)
            step += 1
            for output in self.controller.step():
                if output.request_id in self.kept:
                    self.kept[output.request_id][1].append(output)
                if output.finished:
                    running.remove(output.request_id)
                    self.finished += 1
                    self.cancelled += output.finish_reason == "cancelled"
        self.controller.step()


def reachable(*roots: object) -> Iterator[object]:
    """All that the roots hold on to, code and its globals aside."""
    seen: dict[int, object] = {}
    found = list(roots)
    while found:
        thing = found.pop()
        if id(thing) not in seen and not isinstance(thing, ModuleType | type | Tensor):
            seen[id(thing)] = thing
            yield thing
            inner = [thing.__closure__, thing.__defaults__] if isinstance(thing, FunctionType) else [thing]
            found += gc.get_referents(*inner)


def tensors() -> list[int]:
    gc.collect()
    return sorted(thing.data_ptr() for thing in gc.get_objects() if issubclass(type(thing), Tensor))


def check_nothing_is_left(engine: LLMEngine, controller: AdaptiveController, rows: int) -> None:
    assert engine.scheduler.idle
    assert engine.scheduler.free == list(range(rows))
    assert not engine.state.live_R.any()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is RequestState]
    names = [thing for thing in reachable(engine, controller) if isinstance(thing, str) and thing.startswith("named-")]
    assert not names


@pytest.mark.parametrize(
    ("drafter", "count"), [("none", 500), ("ngram", 1200), ("model", 300)], ids=["none", "ngram", "model"]
)
def test_nothing_is_left_behind(drafter: str, count: int) -> None:
    rows = 4
    engine = tiny_engine(
        MINI,
        max_batch=rows,
        max_gamma=3,
        prefill_chunk=16,
        weights=WEIGHTS,
        draft=drafter == "ngram",
        draft_model=DRAFT if drafter == "model" else None,
    )
    controller = AdaptiveController(engine, policy="fixed:0" if drafter == "none" else "ema")
    load = Load(controller, random.Random(count))
    load.serve(WARM_UP, keep_every=1_000_000)
    before, memory = tensors(), psutil.Process().memory_info().rss
    load.serve(count - WARM_UP, keep_every=9)
    assert tensors() == before, "every buffer is the one it was, and there is no other"
    assert psutil.Process().memory_info().rss - memory < 48 * MIB
    check_nothing_is_left(engine, controller, rows)
    assert load.finished == count
    assert load.cancelled > count / 40
    assert engine.counts.preempted > count / 40
    assert engine.counts.reused_tokens > 2 * count
    assert not controller.stats().policy_errors
    check_answers(load, plain=drafter == "none")


def check_answers(load: Load, plain: bool) -> None:
    """Each as if served alone. Where γ changes, the draws of sampled ones meet other tokens: greedy ones only."""
    checked = 0
    for request, outputs in load.kept.values():
        tokens, sampling = tokens_of(outputs), request.sampling
        if sampling.greedy:
            assert isinstance(request.prompt, list)
            expected = reference_greedy(MINI, WEIGHTS, request.prompt, sampling.max_tokens)
        elif plain and sampling.seed is not None:
            expected = alone(request)
        else:
            continue
        ends = [place for place, token in enumerate(expected) if token in sampling.stop_token_ids]
        expected = expected[: ends[0] + 1] if ends else expected
        assert tokens == expected[: len(tokens)]
        assert len(tokens) == len(expected) or outputs[-1].finish_reason == "cancelled"
        checked += 1
    assert checked > 15


def alone(request: Request) -> list[int]:
    engine = tiny_engine(MINI, max_batch=1, weights=WEIGHTS, draft=False)
    (done,) = AdaptiveController(engine, policy="fixed:0").generate([request.prompt], request.sampling)
    return list(done.tokens)
