"""A request that has to give up its row goes on later as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptive import AdaptiveController
from adaptive.requests import Output, Request, RequestStats, Sampling
from engine.core import LLMEngine
from engine.tokenizer import Tokenizer
from policies import Fixed
from tests.engine.test_limits import ORDER, tokenizer
from tests.engine.tiny import (
    TINY,
    UNTIED,
    Cycling,
    DraftModel,
    cycle_weights,
    near_weights,
    run_all,
    tiny_engine,
    tokens_of,
)

NEAR = DraftModel(TINY, near_weights(TINY))
LOW = {
    "greedy": Request([1, 2, 3, 1, 2], Sampling(max_tokens=30), id="greedy"),
    "sampled": Request([4, 4, 5], Sampling(max_tokens=25, temperature=0.9, seed=7, logprobs=2), id="sampled"),
    "filtered": Request([6, 7, 6], Sampling(max_tokens=28, temperature=1.3, top_k=5, seed=8), id="filtered"),
}
HIGH = Request([9, 9, 3], Sampling(max_tokens=6), id="high", priority=1)


def interrupted(
    engine: LLMEngine, requests: Sequence[Request], intruder: Request, every: int
) -> dict[str, list[Output]]:
    """Serve the requests while an intruder of higher priority comes in every so many steps, five at most."""
    outputs: dict[str, list[Output]] = {}
    for request in requests:
        engine.submit(request)
    step = 0
    while not engine.scheduler.idle:
        if step % every == every - 1 and step < 5 * every:
            engine.submit(replace(intruder, id=f"{intruder.id}-{step}"))
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        step += 1
    return outputs


def stats_of(outputs: Sequence[Output]) -> RequestStats:
    stats = outputs[-1].stats
    assert stats is not None
    return stats


@pytest.mark.parametrize("draft", [None, NEAR], ids=["ngram", "model"])
@pytest.mark.parametrize("gamma", [0, 4])
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "no reuse"])
@pytest.mark.parametrize("rows", [1, 2])
def test_every_answer_is_what_it_would_have_been(draft: DraftModel | None, gamma: int, reuse: bool, rows: int) -> None:
    def engine() -> LLMEngine:
        made = tiny_engine(max_batch=rows, draft_model=draft, prefix_reuse=reuse)
        made.attach(Cycling((gamma,)))
        return made

    cut = engine()
    outputs = interrupted(cut, list(LOW.values()), HIGH, every=5 if gamma else 10)
    assert cut.counts.preempted >= 2
    for name, request in LOW.items():
        alone = run_all(engine(), [request])[name]
        assert tokens_of(outputs[name]) == tokens_of(alone)
        mine, theirs = stats_of(outputs[name]), stats_of(alone)
        assert (mine.steps, mine.drafted, mine.accepted) == (theirs.steps, theirs.drafted, theirs.accepted)
        assert mine.gamma_histogram == theirs.gamma_histogram
        assert theirs.preemptions == 0
    assert sum(stats_of(outputs[name]).preemptions for name in LOW) == cut.counts.preempted
    logprobs = [entry for output in outputs["sampled"] for entry in output.logprobs or ()]
    assert [entry.token for entry in logprobs] == tokens_of(outputs["sampled"])


def test_a_seed_that_was_not_given_is_kept() -> None:
    request = Request([4, 4, 5], Sampling(max_tokens=25, temperature=1.2), id="unseeded")
    answers = []
    for preempted in (False, True):
        random.seed(3)
        engine = tiny_engine(max_batch=1)
        engine.attach(Cycling((2,)))
        outputs = interrupted(engine, [request], HIGH, every=5 if preempted else 1_000)
        assert (engine.counts.preempted > 0) == preempted
        answers.append(tokens_of(outputs["unseeded"]))
    assert answers[0] == answers[1]


def test_text_stop_strings_and_budget_survive() -> None:
    def served(text: Tokenizer, sampling: Sampling, every: int) -> tuple[str, str | None, int]:
        engine = tiny_engine(UNTIED, max_batch=1, weights=cycle_weights(ORDER), tokenizer=text)
        engine.attach(Cycling((1,)))
        outputs = interrupted(engine, [Request([*ORDER, *ORDER[:2]], sampling, id="one")], HIGH, every)["one"]
        return "".join(output.text for output in outputs), outputs[-1].finish_reason, stats_of(outputs).preemptions

    for stop in ((), ("cabb",), ("édc",), ("babc abc",)):
        sampling = Sampling(max_tokens=40, stop=stop, ignore_eos=True)
        text, reason, _ = served(tokenizer(), sampling, 1_000)
        for every in (3, 4, 5):
            cut, cut_reason, times = served(tokenizer(), sampling, every)
            assert (cut, cut_reason) == (text, reason)
            assert times
        assert reason == ("stop" if stop else "length")


def test_only_a_higher_priority_takes_a_row() -> None:
    engine = tiny_engine(max_batch=2)
    controller = Cycling((0,))
    engine.attach(controller)
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        engine.submit(Request([1, 2, 3], Sampling(max_tokens=9), id=name, priority=priority))
    engine.step()
    assert {one.id for one in engine.scheduler.running.values()} == {"a", "b"}
    assert engine.counts.preempted == 0
    engine.submit(Request([4, 5], Sampling(max_tokens=3), id="d", priority=2))
    engine.step()
    assert {one.id for one in engine.scheduler.running.values()} == {"a", "d"}
    assert controller.forgotten == [1], "before the row has its next request"
    assert [one.id for one in engine.scheduler.waiting] == ["b", "c"]
    order = []
    while not engine.scheduler.idle:
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["d", "a", "b", "c"]


def test_a_row_that_returns_is_new_to_policies_and_true_to_the_request() -> None:
    ticks = iter(range(1_000_000))
    engine = tiny_engine(max_batch=1)
    engine._observer._clock = lambda: float(next(ticks))
    controller = Cycling((0,))
    engine.attach(controller)
    low = Request([1, 2, 3], Sampling(max_tokens=12), id="low", tpot_slo_ms=40)
    interrupted(engine, [low], replace(HIGH, prompt=[9] * 30), every=9)
    assert engine.counts.preempted
    assert controller.forgotten == [0] * engine.counts.admitted
    mine = [view for view in controller.views if view.context_lens[0] < 20]
    assert [int(view.emitted[0]) for view in mine] == list(range(12))
    assert [int(view.context_lens[0]) for view in mine] == list(range(3, 15))
    elapsed = [float(view.elapsed[0]) for view in mine if view.elapsed is not None]
    assert elapsed == sorted(elapsed), "since its first token, the time it waited included"
    assert elapsed[-1] > elapsed[0] == 0
    assert all(view.tpot_slo is not None and view.tpot_slo[0] == 0.04 for view in mine)


def test_cancelling_one_that_waits_for_its_row() -> None:
    engine = tiny_engine(max_batch=1)
    engine.attach(Cycling((3,)))
    engine.submit(Request([1, 2, 3], Sampling(max_tokens=40), id="low"))
    before = tokens_of(engine.step())
    engine.submit(HIGH)
    engine.step()
    assert engine.scheduler.waiting[0].id == "low"
    engine.cancel("low")
    outputs = engine.step()
    (last,) = [output for output in outputs if output.request_id == "low"]
    assert (last.finish_reason, last.tokens) == ("cancelled", ())
    assert last.stats is not None
    assert (last.stats.tokens, last.stats.preemptions) == (len(before), 1)
    while not engine.scheduler.idle:
        engine.step()
    assert engine.scheduler.free == [0]


def test_a_prompt_that_is_still_being_read_gives_way_too() -> None:
    engine = tiny_engine(max_batch=1, prefill_chunk=4)
    engine.attach(Cycling((2,)))
    long = Request([1, 2, 3, 4] * 10, Sampling(max_tokens=6), id="long")
    outputs = interrupted(engine, [long], replace(HIGH, sampling=Sampling(max_tokens=2)), every=13)
    alone = tiny_engine(max_batch=1)
    alone.attach(Cycling((2,)))
    assert tokens_of(outputs["long"]) == tokens_of(run_all(alone, [long])["long"])
    assert stats_of(outputs["long"]).preemptions


def test_priority_through_the_controller() -> None:
    controller = AdaptiveController(tiny_engine(max_batch=1), policy=Fixed(2))
    for name, priority in (("low", 0), ("high", 3)):
        controller.submit([1, 2, 3], Sampling(max_tokens=4), id=name, priority=priority)
    order: list[str] = []
    while len(order) < 2:
        order += [output.request_id for output in controller.step() if output.finished]
    assert order == ["high", "low"]
