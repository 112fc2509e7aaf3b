"""A second model as drafter: its cache follows its rows through every course of γ, and it never changes an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive import AdaptiveController
from adaptive.check import check_engine
from adaptive.contract import Acceptance, AcceptanceKind, Capabilities, Decision, Needs, Policy, StepView
from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from engine.drafters import ModelDrafter
from engine.models.config import ModelConfig
from engine.sampling import verify
from engine.sampling.randomness import ACCEPT
from policies import EmaTiers, Fixed
from tests.engine.greedy import PROMPTS, Arrival, check_course, check_greedy
from tests.engine.joint_law import SAMPLES, SMALL, joint_law, p_value, sampled_answers
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

OTHER = ModelConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    context_len=128,
    tie_embeddings=False,
    sliding_window=9,
)
ITSELF = DraftModel(TINY, random_weights(TINY))
NEAR = DraftModel(TINY, near_weights(TINY))
FAR = DraftModel(OTHER, random_weights(OTHER, seed=5))


def rate(controller: Cycling) -> float:
    verified = sum(int(report.verified.sum()) for report in controller.reports)
    return sum(int(report.accepted.sum()) for report in controller.reports) / verified


def model_drafter(engine: LLMEngine) -> ModelDrafter:
    assert isinstance(engine.drafter, ModelDrafter)
    return engine.drafter


# --- greedy ----------------------------------------------------------------------------------------------------------


BATCHES = pytest.mark.parametrize("batch", [1, 3, 8])
DRAFTS = pytest.mark.parametrize("draft", [NEAR, FAR], ids=["near", "far"])


@BATCHES
@DRAFTS
@pytest.mark.parametrize("policy", [Fixed(1), Fixed(3), Fixed(5), EmaTiers()], ids=["1", "3", "5", "ema"])
def test_greedy_equals_plain_decode(draft: DraftModel, policy: Policy, batch: int) -> None:
    engine = tiny_engine(max_batch=batch, draft_model=draft)
    controller = AdaptiveController(engine, policy=policy.clone())
    check_greedy(engine)
    assert not controller.stats().policy_errors


@BATCHES
@DRAFTS
def test_greedy_equals_plain_decode_while_drafting_comes_and_goes(draft: DraftModel, batch: int) -> None:
    engine = tiny_engine(max_batch=batch, draft_model=draft)
    engine.attach(Cycling((0, 3, 0, 0, 0, 5, 1)))
    check_greedy(engine)


@settings(max_examples=25, deadline=None)
@given(
    draft=st.sampled_from([NEAR, FAR]),
    gammas=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    arrivals=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=8),
)
def test_greedy_survives_any_course_of_gamma_arrivals_and_cancels(
    draft: DraftModel, gammas: list[int], arrivals: list[Arrival]
) -> None:
    engine = tiny_engine(max_batch=3, draft_model=draft)
    engine.attach(Cycling(gammas))
    check_course(engine, arrivals, check_books)


def check_books(engine: LLMEngine) -> None:
    """The host counts cached tokens as the device does."""
    for request in engine.scheduler.running.values():
        cached = int(engine.state.cached_R[request.row])
        if request.room > 0:
            assert request.cached == cached < request.context_len


@pytest.mark.parametrize("gammas", [(1,), (3,), (5,), (0, 0, 4, 1), (5, 0), (0, 0, 0, 0, 0, 0, 3, 3)], ids=str)
def test_with_itself_as_drafter_every_greedy_draft_stands(gammas: tuple[int, ...]) -> None:
    """A hole in its cache, after a prompt, a full acceptance or steps without drafts, would show."""
    engine = tiny_engine(max_batch=3, draft_model=ITSELF)
    controller = Cycling(gammas)
    engine.attach(controller)
    requests = [Request(prompt, Sampling(max_tokens=30), id=str(place)) for place, prompt in enumerate(PROMPTS)]
    outputs = run_all(engine, requests, per_step=1)
    assert rate(controller) == 1
    for place, prompt in enumerate(PROMPTS):
        assert tokens_of(outputs[str(place)]) == reference_greedy(TINY, random_weights(TINY), prompt, 30)
    deepest = max(int(report.verified.max()) for report in controller.reports)
    assert deepest == max(gammas)


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_after_steps_without_drafts_the_next_draft_is_the_same(steps: int) -> None:
    """0 → k: what is drafted after a gap is what an engine drafts that never paused, from the same text."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    engine = tiny_engine(max_batch=1, draft_model=FAR)
    controller = Cycling((5, *[0] * steps, 5))
    engine.attach(controller)
    engine.submit(Request(prompt, Sampling(max_tokens=60)))
    tokens = list(prompt)
    while len(controller.reports) <= steps:
        tokens += tokens_of(engine.step())
    engine.step()
    fresh = tiny_engine(max_batch=1, draft_model=FAR, prefill_chunk=64)
    fresh.attach(Cycling((5,)))
    fresh.submit(Request(tokens, Sampling(max_tokens=30)))
    fresh.step()
    assert torch.equal(engine.state.drafts_RM[0], fresh.state.drafts_RM[0])
    cached = len(tokens)
    for mine, theirs in zip(model_drafter(engine).kv.keys, model_drafter(fresh).kv.keys, strict=True):
        assert torch.allclose(mine[:, :cached], theirs[:, :cached], atol=1e-12)


def test_acceptance_after_a_gap_is_that_without() -> None:
    """The same text, once at γ = 4 all along and once with pauses: as many of the draft tokens stand."""

    def accepted_by_length(gammas: Sequence[int]) -> dict[int, int]:
        engine = tiny_engine(max_batch=1, draft_model=NEAR)
        controller = Cycling(gammas)
        engine.attach(controller)
        run_all(engine, [Request([1, 2, 3, 1, 2], Sampling(max_tokens=80))])
        pairs = zip(controller.views, controller.reports, strict=True)
        full = [(view, report) for view, report in pairs if report.verified[0] == 4]
        return {int(view.context_lens[0]): int(report.accepted[0]) for view, report in full}

    steady, paused = accepted_by_length((4,)), accepted_by_length((0, 0, 4, 0, 4, 4))
    shared = steady.keys() & paused.keys()
    assert len(shared) >= 4
    assert [steady[length] for length in shared] == [paused[length] for length in shared]
    assert 0 < sum(steady.values()) < 4 * len(steady), "both outcomes occur"


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [5, 12, 30])
def test_a_row_beyond_the_drafters_context_stops_drafting_and_goes_on(limit: int) -> None:
    short = DraftModel(replace(TINY, context_len=limit), random_weights(TINY))
    engine = tiny_engine(max_batch=2, draft_model=short)
    controller = Cycling((4, 5, 0, 3))
    engine.attach(controller)
    prompts = [[1, 2, 3], [6] * 20]
    requests = [Request(prompt, Sampling(max_tokens=50), id=str(place)) for place, prompt in enumerate(prompts)]
    outputs = run_all(engine, requests)
    for place, prompt in enumerate(prompts):
        assert tokens_of(outputs[str(place)]) == reference_greedy(TINY, random_weights(TINY), prompt, 50)
    assert rate(controller) == 1, "the last tokens that fit are drafted rightly too"
    for view, report in zip(controller.views, controller.reports, strict=True):
        room = view.context_lens + report.verified - 1
        assert (room[report.verified > 0] <= limit).all()
    assert model_drafter(engine).kv.capacity == limit


def test_rows_that_opt_out_cost_the_drafter_nothing() -> None:
    engine = tiny_engine(max_batch=2, draft_model=ITSELF)
    controller = Cycling((3,))
    engine.attach(controller)
    requests = [
        Request([1, 2, 3, 4], Sampling(max_tokens=12), id=str(place), speculation=place == 0) for place in (0, 1)
    ]
    outputs = run_all(engine, requests)
    assert tokens_of(outputs["0"]) == tokens_of(outputs["1"])
    assert not any(report.verified[report.rows == 1].any() for report in controller.reports)
    limit = model_drafter(engine).limit
    assert not any(half[:, limit : 2 * limit].any() for half in model_drafter(engine).kv.keys)


@pytest.mark.parametrize("size", [8, 11, 19])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_vocabulary_that_differs_in_padding_works(size: int, temperature: float) -> None:
    """Fewer ids than the model's: what is lacking is never drafted, and harmless in the text. More: the same."""
    config = replace(OTHER, vocab_size=size)
    draft = DraftModel(config, random_weights(config, seed=2))
    engine = tiny_engine(max_batch=2, draft_model=draft)
    controller = Cycling((4, 2))
    engine.attach(controller)
    sampling = Sampling(max_tokens=40, temperature=temperature, seed=1)
    outputs = run_all(engine, [Request([10, 9, 8], sampling, id="one"), Request([1], sampling, id="two")])
    drafted = {int(token) for token in engine.state.drafts_RM[:2, :4].flatten()}
    assert drafted <= set(range(min(size, 11)))
    assert len(tokens_of(outputs["one"])) == 40
    q_V = model_drafter(engine).q_RMV[:2, :2]
    assert q_V.shape[-1] == 11
    assert not q_V[..., size:].any()
    if temperature:
        assert torch.allclose(q_V.sum(-1), torch.ones_like(q_V[..., 0]))
    else:
        assert tokens_of(outputs["one"]) == reference_greedy(TINY, random_weights(TINY), [10, 9, 8], 40)


def test_another_tokenizer_is_refused_with_both_vocabularies_named() -> None:
    config = replace(OTHER, vocab_size=19)
    with pytest.raises(ValueError, match=r"vocabulary of 19.*vocabulary of 11.*different tokenizers: choose"):
        tiny_engine(draft_model=DraftModel(config, random_weights(config), same_tokenizer=False))


def test_the_engine_conforms() -> None:
    assert len(check_engine(lambda: tiny_engine(draft_model=NEAR))) > 8


def test_capabilities() -> None:
    caps = tiny_engine(draft_model=NEAR, max_gamma=4).capabilities()
    assert caps.gammas == (0, 1, 2, 3, 4)
    assert caps.drafters["model"].kind == "lm"
    assert caps.acceptances == set(AcceptanceKind)


# --- sampled ---------------------------------------------------------------------------------------------------------

SEED = 3
NEAR_SMALL = DraftModel(SMALL, near_weights(SMALL, SEED, noise=0.2))
FAR_SMALL = DraftModel(SMALL, random_weights(SMALL, seed=10))
PLAIN = Sampling(temperature=0.9)
STANDARD, BLOCK = Acceptance(AcceptanceKind.STANDARD), Acceptance(AcceptanceKind.BLOCK)
BOTH_RULES = pytest.mark.parametrize("rule", [STANDARD, BLOCK], ids=["standard", "block"])


def chance(
    sampling: Sampling, draft: DraftModel, rule: Acceptance, gammas: Sequence[int], samples: int = SAMPLES
) -> float:
    """How likely answers as far from the exact joint law of four tokens are, were they drawn from it."""
    answers = sampled_answers(gammas, sampling, SEED, draft, rule, prompt=[1], samples=samples)
    return p_value(answers, joint_law(sampling, SEED, prompt=[1]))


@BOTH_RULES
@pytest.mark.parametrize(
    ("draft", "gammas"),
    [(FAR_SMALL, (3,)), (FAR_SMALL, (0, 2, 1, 3)), (NEAR_SMALL, (0, 2, 1, 3))],
    ids=["far", "far, changing", "near, changing"],
)
def test_sampling_follows_the_exact_joint_law(draft: DraftModel, gammas: tuple[int, ...], rule: Acceptance) -> None:
    assert chance(PLAIN, draft, rule, gammas) > 1e-3


@BOTH_RULES
@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.4, top_k=2), Sampling(temperature=1.2, top_p=0.8)],
    ids=["top-k", "top-p"],
)
def test_filtered_sampling_follows_the_exact_joint_law(sampling: Sampling, rule: Acceptance) -> None:
    assert chance(sampling, NEAR_SMALL, rule, (2, 3)) > 1e-3


def test_block_verification_of_copied_drafts_follows_the_exact_joint_law() -> None:
    answers = sampled_answers((3, 1), PLAIN, SEED, None, BLOCK, samples=SAMPLES // 2)
    assert p_value(answers, joint_law(PLAIN, SEED)) > 1e-3


@BOTH_RULES
def test_a_biased_residual_is_caught(rule: Acceptance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrawing from p after a rejection, not from what is left of it, must not pass."""
    lawful = verify.emit

    def biased(probs_NV: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        grid_BW, drafts_BG, verified_B, accepted_B, share_B1, choose_B, q_BGV = rest
        return lawful(probs_NV, grid_BW, drafts_BG, verified_B, accepted_B, share_B1, choose_B, q_BGV * 0)

    monkeypatch.setattr(verify, "emit", biased)
    assert chance(PLAIN, FAR_SMALL, rule, (3,), samples=SAMPLES // 2) < 1e-6


def test_a_reused_random_number_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft token drawn with the number that later judges it must not pass."""
    monkeypatch.setattr("engine.drafters.stepwise.DRAFT", ACCEPT)
    assert chance(PLAIN, NEAR_SMALL, STANDARD, (3,), samples=SAMPLES // 2) < 1e-6


class FixedByBlock(Fixed):
    """A policy that asks for the other exact rule."""

    def bind(self, caps: Capabilities) -> Needs:
        return replace(super().bind(caps), acceptances=frozenset({AcceptanceKind.BLOCK}))

    def decide(self, view: StepView) -> Decision:
        return replace(super().decide(view), acceptance=BLOCK)


def test_the_rule_that_a_policy_asks_for_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def noted(name: str, rule: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        def run(*args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ran.append(name)
            return rule(*args)

        monkeypatch.setattr(f"engine.step.verify_{name}", run)

    noted("standard", verify.verify_standard)
    noted("block", verify.verify_block)
    controller = AdaptiveController(tiny_engine(draft_model=NEAR), policy=FixedByBlock(3))
    for policy, expected in ((FixedByBlock(3), {"block"}), (Fixed(3), {"standard"})):
        controller.policy = policy
        controller.generate([[1, 2, 3]], Sampling(max_tokens=12, temperature=1.0, seed=0))
        assert set(ran) == expected
        ran.clear()
    assert not controller.stats().clamped


def test_with_itself_as_drafter_nearly_every_sampled_draft_stands() -> None:
    """p and q are then the same but for rounding."""
    for rule in (STANDARD, BLOCK):
        engine = tiny_engine(max_batch=8, draft_model=ITSELF)
        controller = Cycling((4, 0, 5), rule)
        engine.attach(controller)
        sampled = [Sampling(40, 1.2, seed=1), Sampling(40, 0.8, top_k=3, seed=2), Sampling(40, 1.0, top_p=0.7, seed=3)]
        run_all(engine, [Request([1, 2, 3], sampling, id=str(place)) for place, sampling in enumerate(sampled)])
        assert rate(controller) == 1


def test_a_greedy_row_beside_sampled_ones_gives_its_plain_tokens() -> None:
    for rule in (STANDARD, BLOCK):
        engine = tiny_engine(max_batch=3, draft_model=NEAR)
        engine.attach(Cycling((3, 0, 5), rule))
        sampled = [Request([4, 4, 5], Sampling(25, 1.5, seed=1)), Request([7], Sampling(25, 0.7, top_k=3, seed=2))]
        outputs = run_all(engine, [*sampled, Request([1, 2, 3, 1, 2], Sampling(max_tokens=25), id="greedy")])
        assert tokens_of(outputs["greedy"]) == reference_greedy(TINY, random_weights(TINY), [1, 2, 3, 1, 2], 25)
