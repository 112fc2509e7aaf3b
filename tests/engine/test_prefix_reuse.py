"""What a prompt shares with a row is not computed again, and no answer changes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from adaptive import AdaptiveController
from adaptive.requests import Output, Request, RequestStats, Sampling
from engine.core import LLMEngine
from engine.drafters import ModelDrafter
from engine.prefix import PrefixIndex
from engine.request_state import RequestState
from policies import Fixed
from tests.engine.capture_law import LawfulBackend
from tests.engine.tiny import (
    TINY,
    Cycling,
    DraftModel,
    near_weights,
    random_weights,
    reference_greedy,
    run_all,
    tiny_engine,
    tokens_of,
)

SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
ITSELF = DraftModel(TINY, random_weights(TINY))
NEAR = DraftModel(TINY, near_weights(TINY))
WEIGHTS = random_weights(TINY)
GAMMAS = [(0,), (5,), (3, 0, 1, 5)]
DRAFTS = pytest.mark.parametrize("draft", [None, NEAR, ITSELF], ids=["ngram", "near", "itself"])


def served(engine: LLMEngine, request: Request) -> tuple[list[int], RequestStats]:
    outputs = run_all(engine, [request])[str(request.id)]
    return tokens_of(outputs), stats_of(outputs)


def stats_of(outputs: Sequence[Output]) -> RequestStats:
    stats = outputs[-1].stats
    assert stats is not None
    return stats


def conversation(engine: LLMEngine, sampling: Sampling, turns: int = 4) -> tuple[list[list[int]], list[RequestStats]]:
    """Each prompt is all that was said before, and a word more."""
    prompt, answers, stats = list(SYSTEM), [], []
    for turn in range(turns):
        answer, one = served(engine, Request(prompt, sampling, id=f"turn-{turn}"))
        answers.append(answer)
        stats.append(one)
        prompt = [*prompt, *answer, turn, 7]
    return answers, stats


@DRAFTS
@pytest.mark.parametrize("gammas", GAMMAS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_conversation_is_the_same_with_and_without(
    draft: DraftModel | None, gammas: tuple[int, ...], temperature: float
) -> None:
    sampling = Sampling(max_tokens=12, temperature=temperature, seed=5)
    answers = []
    for reuse in (True, False):
        engine = tiny_engine(draft_model=draft, prefix_reuse=reuse)
        # one γ for each step of a turn's own: with reuse there are no steps that only read
        engine.attach(Cycling(gammas))
        got, stats = conversation(engine, sampling)
        answers.append(got)
        cached = [one.cached_prompt_tokens for one in stats]
        lengths = [one.prompt_tokens for one in stats]
        assert cached == ([0, *(length - 3 for length in lengths[1:])] if reuse else [0] * 4)
        assert engine.counts.reused_tokens == sum(cached)
        assert engine.counts.prefill_tokens == sum(lengths) - 4 - sum(cached)
    assert answers[0] == answers[1]


def test_greedy_equals_plain_decode() -> None:
    engine = tiny_engine()
    engine.attach(Cycling((5, 3)))
    prompt = list(SYSTEM)
    for turn in range(4):
        answer, _ = served(engine, Request(prompt, Sampling(max_tokens=14), id=str(turn)))
        assert answer == reference_greedy(TINY, WEIGHTS, prompt, 14)
        prompt += [*answer, turn]


def believe(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Plant a wrong bound: `tokens` more than what stands."""
    honest = PrefixIndex._follow

    def follow(index: PrefixIndex, request: RequestState) -> None:
        honest(index, request)
        index.held_R[request.row] += tokens

    monkeypatch.setattr(PrefixIndex, "_follow", follow)


def test_a_bound_too_high_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch, 1)
    engine = tiny_engine(prefill_chunk=64)
    engine.attach(Cycling((5,)))
    answers, _ = conversation(engine, Sampling(max_tokens=14))
    prompt, wrong = list(SYSTEM), 0
    for turn, answer in enumerate(answers):
        wrong += answer != reference_greedy(TINY, WEIGHTS, prompt, 14)
        prompt += [*answer, turn, 7]
    assert wrong


@DRAFTS
def test_equal_prompts_are_read_once(draft: DraftModel | None) -> None:
    engine = tiny_engine(draft_model=draft)
    engine.attach(Cycling((3,)))
    requests = [Request([*SYSTEM, 1], Sampling(max_tokens=9), id=str(place)) for place in range(4)]
    outputs = run_all(engine, requests)
    cached = [stats_of(outputs[str(place)]).cached_prompt_tokens for place in range(4)]
    assert cached == [0, 20, 20, 20]
    assert engine.counts.prefill_tokens == 20
    for place in range(4):
        assert tokens_of(outputs[str(place)]) == reference_greedy(TINY, WEIGHTS, [*SYSTEM, 1], 9)


@DRAFTS
def test_a_running_row_shares_what_it_has_said(draft: DraftModel | None) -> None:
    engine = tiny_engine(draft_model=draft)
    engine.attach(Cycling((4,)))
    engine.submit(Request(SYSTEM, Sampling(max_tokens=60), id="first"))
    said: list[int] = []
    while len(said) < 20:
        said += tokens_of(engine.step())
    prompt = [*SYSTEM, *said[:15], 2]
    second = Request(prompt, Sampling(max_tokens=8), id="second")
    engine.submit(second)
    got: dict[str, list[int]] = {"first": said, "second": []}
    cached = 0
    while not engine.scheduler.idle:
        for output in engine.step():
            got[output.request_id] += output.tokens
            if output.request_id == "second" and output.stats is not None:
                cached = output.stats.cached_prompt_tokens
    assert cached == 35
    assert got["second"] == reference_greedy(TINY, WEIGHTS, prompt, 8)
    assert got["first"] == reference_greedy(TINY, WEIGHTS, SYSTEM, 60)


def test_with_itself_as_drafter_every_draft_still_stands() -> None:
    """What was copied to the drafter's cache is right, or its drafts would not be the model's own tokens."""
    engine = tiny_engine(draft_model=ITSELF)
    controller = Cycling((4, 2, 0))
    engine.attach(controller)
    conversation(engine, Sampling(max_tokens=12))
    requests = [Request([*SYSTEM, place], Sampling(max_tokens=9), id=str(place)) for place in range(8)]
    run_all(engine, requests, per_step=1)
    assert engine.counts.reused_tokens > 8 * 16
    assert all((report.accepted == report.verified).all() for report in controller.reports)
    assert sum(int(report.verified.sum()) for report in controller.reports) > 50


def test_the_drafter_reads_only_what_its_cache_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking: list[int] = []
    honest = ModelDrafter.catch_up

    def catch_up(drafter: ModelDrafter, *arguments: object) -> None:
        lacking.append(int((arguments[0].lens_R - 1 - arguments[0].cached_R)[:1].max()))  # type: ignore[attr-defined]
        honest(drafter, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelDrafter, "catch_up", catch_up)
    engine = tiny_engine(draft_model=NEAR, prefill_chunk=64)
    engine.attach(Cycling((3,)))
    conversation(engine, Sampling(max_tokens=12), turns=3)
    assert lacking[0] == len(SYSTEM) - 1
    assert max(lacking[1:], default=0) <= 5, "the turn's new tokens, and what the last step left"


def test_two_conversations_in_turn_keep_their_caches() -> None:
    """Both sit in the lowest row; what is there moves aside, and comes back by a copy."""
    engine = tiny_engine(max_batch=4)
    engine.attach(Cycling((2,)))
    prompts = {"a": list(SYSTEM), "b": SYSTEM[::-1]}
    cached: dict[str, list[int]] = {"a": [], "b": []}
    for turn in range(3):
        for name, prompt in prompts.items():
            answer, stats = served(engine, Request(prompt, Sampling(max_tokens=8), id=f"{name}{turn}"))
            assert answer == reference_greedy(TINY, WEIGHTS, prompt, 8)
            cached[name].append(stats.cached_prompt_tokens)
            prompts[name] = [*prompt, *answer, turn]
    assert cached == {"a": [0, 27, 36], "b": [0, 27, 36]}


def test_one_row_keeps_the_last_conversation_only() -> None:
    engine = tiny_engine(max_batch=1)
    engine.attach(Cycling((2,)))
    served(engine, Request(SYSTEM, id="a", sampling=Sampling(max_tokens=4)))
    assert served(engine, Request(SYSTEM, id="again"))[1].cached_prompt_tokens == 19
    served(engine, Request(SYSTEM[::-1], id="b", sampling=Sampling(max_tokens=4)))
    assert served(engine, Request(SYSTEM, id="last"))[1].cached_prompt_tokens == 0


def test_the_time_of_prompts_is_told_apart() -> None:
    ticks = iter(range(1_000_000))
    engine = tiny_engine(max_batch=1)
    engine.runner._clock = lambda: float(next(ticks))
    controller = Cycling((2,))
    engine.attach(controller)
    _, stats = served(engine, Request([*SYSTEM, 1], id="cold", sampling=Sampling(max_tokens=9)))
    assert stats.prefill_ms == 3e3, "chunks of 8, 8 and 4 tokens"
    assert [report.prefill_s for report in controller.reports] == [1, *[0] * (stats.steps - 1)]
    assert [report.num_prefill_tokens for report in controller.reports] == [4, *[0] * (stats.steps - 1)]
    assert all(report.verify_s == 1 for report in controller.reports)
    _, stats = served(engine, Request([*SYSTEM, 1], id="warm", sampling=Sampling(max_tokens=9)))
    assert stats.prefill_ms == 0
    assert engine.counts.prefill_s == 3


COURSE = [
    Request(SYSTEM, Sampling(max_tokens=7), id="0"),
    Request([*SYSTEM, 1], Sampling(max_tokens=12, temperature=0.9, seed=1, logprobs=1), id="1"),
    Request([*SYSTEM[:17], 2, 2], Sampling(max_tokens=5), id="2"),
    Request([*SYSTEM, *SYSTEM], Sampling(max_tokens=9), id="3", priority=1),
    Request(SYSTEM[::-1], Sampling(max_tokens=9), id="4"),
    Request([*SYSTEM, *SYSTEM, 4], Sampling(max_tokens=6), id="5"),
]


SHORT = replace(NEAR, config=replace(TINY, context_len=30))
COURSE_DRAFTS = pytest.mark.parametrize("draft", [None, SHORT], ids=["ngram", "near"])


def course(draft: DraftModel | None, backend: str, device: str = "cpu") -> tuple[dict[str, list[int]], int]:
    """What came of it, and how many tokens were reused."""
    config = replace(TINY, num_layers=1)
    engine = tiny_engine(config, max_batch=2, draft_model=draft, backend=backend, device=device)
    engine.attach(Cycling((3, 0, 2)))
    outputs = run_all(engine, COURSE, per_step=1)
    return {name: tokens_of(chunks) for name, chunks in outputs.items()}, engine.counts.reused_tokens


@COURSE_DRAFTS
def test_backends_agree_and_keep_the_law(draft: DraftModel | None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = course(draft, "eager")
    assert expected[1] > 70
    assert course(draft, "late") == expected
    assert course(draft, "replay") == expected
    laws: list[LawfulBackend] = []

    def lawful(name: str, device: str) -> LawfulBackend:
        laws.append(LawfulBackend())
        return laws[-1]

    monkeypatch.setattr("engine.core.make_backend", lawful)
    assert course(draft, "eager") == expected
    assert "index_copy_" in laws[0].law.ops


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device and torch finds none")
@COURSE_DRAFTS
def test_graphs_agree_with_eager_on_a_gpu(draft: DraftModel | None) -> None:
    expected = course(draft, "eager", "cuda")
    assert expected[1] > 70
    assert course(draft, "cuda", "cuda") == expected


def test_through_the_controller() -> None:
    controller = AdaptiveController(tiny_engine(), policy=Fixed(3))
    first, second = controller.generate([SYSTEM], Sampling(max_tokens=5))[0], controller.generate([SYSTEM])[0]
    assert first.stats is not None
    assert second.stats is not None
    assert (first.stats.cached_prompt_tokens, second.stats.cached_prompt_tokens) == (0, 19)
