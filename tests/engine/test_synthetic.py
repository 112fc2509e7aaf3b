"""Synthetic acceptance: as many draft tokens stand as asked, and nothing else about a step changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive import AdaptiveController
from adaptive.benchmark.probe import ProbedEngine
from adaptive.contract import StepReport
from adaptive.requests import Output, Request, Sampling
from engine import LLMEngine, SyntheticAcceptance
from engine.batch import RowState
from engine.config import EngineConfig
from engine.drafters import NgramDrafter
from engine.kv import KVCache
from engine.llm import load_engine
from engine.models.decoder import Decoder
from engine.sampling.distribution import Sampler
from engine.step import DecodeStep, StepKey
from policies import EmaTiers
from tests.engine.capture_law import LawfulBackend
from tests.engine.gguf_files import TinyGguf
from tests.engine.tiny import TINY, Cycling, random_weights, reference_logits, run_all, tiny_engine, tokens_of

GAMMA = 5
TOKENS = 80
REQUESTS = 24
COURSES = {"fixed": (GAMMA,), "changing": (GAMMA, 0, 2, 3, 1, 4)}
ASKED = {
    "rate": SyntheticAcceptance(rate=0.55),
    "rates": SyntheticAcceptance(rates=[0.9, 0.7, 0.7, 0.2, 0.05]),
    "few rates": SyntheticAcceptance(rates=[1.0, 0.6]),
    "length": SyntheticAcceptance(length=3.4),
    "none": SyntheticAcceptance(rate=0),
    "all": SyntheticAcceptance(rate=1),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=TOKENS),
    "sampled": Sampling(max_tokens=TOKENS, temperature=1.1),
    "filtered": Sampling(max_tokens=TOKENS, temperature=0.9, top_k=6, top_p=0.9),
}


def served(
    synthetic: SyntheticAcceptance, gammas: Sequence[int], sampling: Sampling, count: int = REQUESTS
) -> tuple[dict[str, list[Output]], Cycling]:
    """Short prompts, in most of which nothing matches at first."""
    engine = tiny_engine(max_batch=8, max_gamma=GAMMA, synthetic=synthetic)
    controller = Cycling(gammas)
    engine.attach(controller)
    requests = [Request([place % 11], replace(sampling, seed=place), id=str(place)) for place in range(count)]
    return run_all(engine, requests), controller


def assert_rates(reports: Sequence[StepReport], asked: Sequence[float]) -> None:
    """Per position: of the tokens verified there, the share that stood with all before it, within 4 standard errors."""
    verified = np.concatenate([report.verified for report in reports])
    accepted = np.concatenate([report.accepted for report in reports])
    for position, rate in enumerate(asked):
        tried, stood = int((verified > position).sum()), int((accepted > position).sum())
        assert tried > 60
        assert abs(stood / tried - rate) <= 4 * np.sqrt(rate * (1 - rate) / tried) + 1e-12, f"position {position}"


# --- what is asked ---------------------------------------------------------------------------------------------------


def test_rates_become_chances_of_single_tokens() -> None:
    asked = SyntheticAcceptance(rates=[0.8, 0.4, 0.0])
    assert np.allclose(asked.unconditional(5), [0.8, 0.4, 0, 0, 0])
    assert np.allclose(asked.conditional(5), [0.8, 0.5, 0, 0, 0])


@pytest.mark.parametrize("max_gamma", [1, 3, 16])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.3, 0.7, 0.999, 1.0])
def test_length_and_rate_give_every_token_the_same_chance(share: float, max_gamma: int) -> None:
    for asked in (SyntheticAcceptance(rate=share), SyntheticAcceptance(length=1 + share * max_gamma)):
        rates, chances = asked.unconditional(max_gamma), asked.conditional(max_gamma)
        assert rates.sum() == pytest.approx(share * max_gamma)
        assert np.allclose(chances, chances[0], atol=1e-9)
        assert share not in (0, 1) or np.all(chances == share), "never and always are exact"


MISTAKES = {
    "none": ({}, "one of rate, rates, length; got none"),
    "two": ({"rate": 0.5, "length": 2.0}, "got rate, length"),
    "rate above 1": ({"rate": 1.01}, r"rate=1.01 is not valid.* 0 to 1"),
    "negative rate": ({"rate": -0.1}, "rate=-0.1"),
    "rate nan": ({"rate": float("nan")}, "rate=nan"),
    "no rates": ({"rates": []}, r"rates=\[\] are not valid.* at least one"),
    "rates above 1": ({"rates": [1.2, 0.5]}, r"rates=\[1.2, 0.5\] are not valid"),
    "negative rates": ({"rates": [0.5, -0.5]}, "from 0 to 1"),
    "rates nan": ({"rates": [0.5, float("nan")]}, "from 0 to 1"),
    "increasing rates": ({"rates": [0.5, 0.6]}, "none above the one before"),
    "short length": ({"length": 0.9}, "length=0.9 is not valid.* from 1"),
    "length nan": ({"length": float("nan")}, "length=nan"),
}


@pytest.mark.parametrize(("settings", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(settings: dict[str, float | list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticAcceptance(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "max_gamma", "message"),
    [
        (SyntheticAcceptance(length=6.1), 5, "length=6.1 is out of reach: steps emit 1 to 6 tokens"),
        (SyntheticAcceptance(rates=[0.5] * 7), 5, "7 rates for 5 draft tokens: leave out the last 2"),
        (SyntheticAcceptance(rate=0.5), 0, "needs a drafter"),
    ],
)
def test_what_an_engine_can_not_do_is_refused(asked: SyntheticAcceptance, max_gamma: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked.conditional(max_gamma)
    with pytest.raises(ValueError, match=message):
        tiny_engine(max_gamma=max_gamma or 5, draft=max_gamma > 0, synthetic=asked)


def test_loading_refuses_it_before_reading_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyGguf().write(tmp_path / "tiny.gguf")
    assert load_engine(model, max_gamma=2, synthetic=SyntheticAcceptance(length=3)).synthetic is not None
    monkeypatch.delattr("engine.models.source.ModelSource.load")
    with pytest.raises(ValueError, match="length=4 is out of reach"):
        load_engine(model, max_gamma=2, synthetic=SyntheticAcceptance(length=4))
    with pytest.raises(ValueError, match="needs a drafter"):
        load_engine(model, drafter=None, synthetic=SyntheticAcceptance(rate=1))


def test_an_engine_says_so() -> None:
    engine = tiny_engine(synthetic=SyntheticAcceptance(rates=[0.5, 0.25]))
    notice = "synthetic acceptance: outputs are meaningless (rates 0.5, 0.25)"
    assert engine.describe()["synthetic_acceptance"] == notice
    assert tiny_engine().describe()["synthetic_acceptance"] is None
    names = [str(SyntheticAcceptance(rate=0.7)), str(SyntheticAcceptance(length=3))]
    assert names == ["rate 0.7", "length 3"]


# --- what is measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_acceptance_is_what_was_asked(asked: SyntheticAcceptance, course: tuple[int, ...]) -> None:
    _, controller = served(asked, course, SAMPLINGS["greedy"])
    assert_rates(controller.reports, asked.unconditional(GAMMA).tolist())


@pytest.mark.parametrize("kind", ["sampled", "filtered"])
def test_acceptance_does_not_depend_on_the_sampling(kind: str) -> None:
    _, controller = served(ASKED["rates"], COURSES["changing"], SAMPLINGS[kind])
    assert_rates(controller.reports, ASKED["rates"].unconditional(GAMMA).tolist())


@pytest.mark.parametrize(("name", "length"), [("rate", 1 + 0.55 * GAMMA), ("length", 3.4), ("few rates", 2.6)])
def test_the_mean_emitted_length_is_what_was_asked(name: str, length: float) -> None:
    _, controller = served(ASKED[name], (GAMMA,), SAMPLINGS["greedy"])
    verified = np.concatenate([report.verified for report in controller.reports])
    emitted = np.concatenate([report.emitted for report in controller.reports])[verified == GAMMA]
    assert len(emitted) > 300
    assert abs(emitted.mean() - length) < 4 * emitted.std() / np.sqrt(len(emitted))


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_every_draft_is_full_and_budgets_are_exact(course: tuple[int, ...]) -> None:
    """Also where the n-gram drafter finds nothing: a draft is as long as γ and the budget allow."""
    outputs, controller = served(ASKED["rate"], course, SAMPLINGS["greedy"])
    assert [len(tokens_of(one)) for one in outputs.values()] == [TOKENS] * REQUESTS
    for view, report in zip(controller.views, controller.reports, strict=True):
        assert report.verified.tolist() == np.minimum(report.gamma, TOKENS - view.emitted - 1).tolist()
        assert np.array_equal(report.emitted, report.accepted + 1), "the device itself keeps to the budget"


# --- what is emitted -------------------------------------------------------------------------------------------------


def test_accepted_draft_tokens_are_emitted_and_then_the_targets_own() -> None:
    """The last token of each step is the target's choice after all the meaningless ones before it."""
    outputs, _ = served(ASKED["length"], (GAMMA,), Sampling(max_tokens=30), count=3)
    weights = random_weights(TINY)
    lengths = set()
    for name, steps in outputs.items():
        history = [int(name) % 11]
        for step in steps:
            history.extend(step.tokens)
            lengths.add(len(step.tokens))
            assert history[-1] == int(reference_logits(TINY, weights, history[:-1])[-1].argmax())
    assert len(lengths) > 3


def test_a_missing_proposal_repeats_the_newest_token() -> None:
    outputs, _ = served(ASKED["all"], (GAMMA,), Sampling(max_tokens=6), count=11)
    assert [step[0].tokens[:GAMMA] for step in outputs.values()] == [(token,) * GAMMA for token in range(11)]


def test_proposals_of_the_drafter_are_kept() -> None:
    engine = tiny_engine(max_gamma=GAMMA, synthetic=ASKED["all"])
    engine.attach(Cycling((GAMMA,)))
    (outputs,) = run_all(engine, [Request([1, 2, 3, 4, 1], Sampling(max_tokens=6))]).values()
    assert outputs[0].tokens[:GAMMA] == (2, 3, 4, 1, 2)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_accepting_nothing_is_plain_decoding(sampling: Sampling) -> None:
    """One token a step, drawn with the very number that plain decoding draws it with."""
    plain, _ = served(ASKED["all"], (0,), sampling, count=8)
    nothing, _ = served(ASKED["none"], (GAMMA,), sampling, count=8)
    engine = tiny_engine(max_batch=8, max_gamma=GAMMA)
    engine.attach(Cycling((0,)))
    real = run_all(engine, [Request([place], replace(sampling, seed=place), id=str(place)) for place in range(8)])
    for name, outputs in real.items():
        assert tokens_of(outputs) == tokens_of(plain[name]) == tokens_of(nothing[name])


def test_stop_tokens_and_opting_out_still_count() -> None:
    engine = tiny_engine(max_gamma=GAMMA, synthetic=ASKED["all"])
    controller = Cycling((GAMMA,))
    engine.attach(controller)
    stopped = Request([7], Sampling(max_tokens=20, stop_token_ids=(7,)), id="stopped")
    silent = Request([3], Sampling(max_tokens=20), id="silent", speculation=False)
    outputs = run_all(engine, [stopped, silent])
    assert tokens_of(outputs["stopped"]) == [7]
    assert outputs["stopped"][-1].finish_reason == "stop"
    stats = outputs["silent"][-1].stats
    assert stats is not None
    assert (stats.steps, stats.drafted) == (20, 0)
    assert controller.forgotten == [0, 1]


def test_seeds_decide_what_stands() -> None:
    def course(seed: int) -> list[int]:
        engine = tiny_engine(max_gamma=GAMMA, synthetic=ASKED["rate"])
        controller = Cycling((GAMMA,))
        engine.attach(controller)
        run_all(engine, [Request([1], Sampling(max_tokens=60, seed=seed))])
        return [int(report.accepted[0]) for report in controller.reports]

    assert course(1) == course(1) != course(2)


# --- what can be captured --------------------------------------------------------------------------------------------


def test_the_pieces_run_on_meta_tensors() -> None:
    decoder = Decoder(TINY, {name: one.to("meta") for name, one in random_weights(TINY).items()}, 96, "meta")
    state = RowState(rows=4, capacity=96, max_gamma=GAMMA, device="meta")
    kv = KVCache.allocate(TINY, rows=4, capacity=96, dtype=torch.float64, device="meta")
    logits = torch.zeros((24, TINY.vocab_size), dtype=torch.float64, device="meta")
    chances = torch.zeros(GAMMA, dtype=torch.float64, device="meta")
    drafter = NgramDrafter(EngineConfig(max_batch=4, context_len=96, max_gamma=GAMMA, device="meta"), min_match=1)
    step = DecodeStep(decoder, kv, state, drafter, logits, chances)
    for (gamma, tokens), sampler, logprobs in product([(0, 4), (1, 7), (5, 24)], Sampler, [False, True]):
        key = StepKey(4, gamma, tokens, 96, sampler, logprobs)
        step.verify(key)
        step.accept(key)
        step.draft(key.draft)


def test_a_whole_run_keeps_the_law_of_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.make_backend", lambda name, device: LawfulBackend())
    engine = tiny_engine(max_gamma=GAMMA, synthetic=ASKED["length"])
    controller = Cycling((5, 0, 1, 3))
    engine.attach(controller)
    run_all(engine, [Request([1, 2], replace(one, max_tokens=20, seed=3)) for one in SAMPLINGS.values()], per_step=1)
    assert {report.gamma for report in controller.reports} == {0, 1, 3, 5}


# --- what it is for --------------------------------------------------------------------------------------------------


def courses_of(engine: LLMEngine) -> list[int]:
    """γ of every step of `EmaTiers` over a few answers, one after another."""
    probed = ProbedEngine(engine)
    controller = AdaptiveController(probed, policy=EmaTiers())
    controller.generate([[place] for place in range(6)], Sampling(max_tokens=80, seed=1))
    return [step.gamma for step in probed.probe.steps]


def test_a_policy_lets_go_when_nothing_stands() -> None:
    gammas = courses_of(tiny_engine(max_batch=1, max_gamma=16, synthetic=SyntheticAcceptance(rate=0)))
    assert gammas.count(0) > 0.6 * len(gammas)
    assert max(gammas[len(gammas) // 2 :]) <= 1, "only probes are left"


def test_a_policy_climbs_to_the_top_when_all_stand() -> None:
    gammas = courses_of(tiny_engine(max_batch=1, max_gamma=16, synthetic=SyntheticAcceptance(rate=1)))
    assert set(gammas[len(gammas) // 2 :]) == {16}
