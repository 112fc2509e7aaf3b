"""The small real model: our logits and tokens against transformers, and speculation against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.benchmark.prompts import built_in_prompts
from adaptive.contract import Policy
from adaptive.peers import load_transformers
from adaptive.requests import Request, Sampling
from engine import EngineConfig, LLMEngine
from engine.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.drafters.formats import open_heads
from engine.drafters.shipped import METHODS, shipped_drafter
from engine.drafters.trained import make_trained
from engine.drafters.vocabulary import Target
from engine.models.checkpoint import Checkpoint
from engine.models.decoder import Decoder
from engine.models.gguf import load_gguf
from policies import EmaTiers, Fixed
from tests.engine.agreement import Tokens, count_near_ties
from tests.engine.tiny import Cycling, run_all, tokens_of

pytest.importorskip("transformers")
pytestmark = pytest.mark.real

CONTEXT = 512
QUICK = ("free-tides", "free-market", "code-words", "text-ferry")
POLICIES: dict[str, Policy] = {"fixed:3": Fixed(3), "ema": EmaTiers()}


@dataclass(frozen=True)
class Case:
    """Prompts, and how many tokens of each are compared."""

    prompts: list[Tokens]
    length: int


class Real:
    """The model in both implementations over the same weights, loaded once; answers are computed once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.decoder = Decoder(checkpoint.config, checkpoint.weights, CONTEXT, "cpu")
        self._plain: dict[int, list[Tokens]] = {}

    @cached_property
    def peer(self) -> Any:
        return load_transformers(self.checkpoint)

    def engine(self, max_batch: int, drafter: str = "ngram") -> LLMEngine:
        """`drafter` is `ngram`, `itself` for the model, or one that comes with the package."""
        config = EngineConfig(max_batch=max_batch, context_len=CONTEXT, prefill_chunk=64, max_gamma=8)
        chosen: Drafter = NgramDrafter(config)
        if drafter == "itself":
            chosen = ModelDrafter(self.decoder, config, self.decoder.config.vocab_size, same_tokenizer=True)
        elif drafter in METHODS:
            heads = open_heads(require_shipped(drafter))
            weights = heads.load(config.torch_dtype)
            chosen = make_trained(heads, weights, Target.of(self.decoder, self.checkpoint.weights), config)
        return LLMEngine(self.decoder, config, tokenizer=self.checkpoint.tokenizer, drafter=chosen)

    def case(self, ids: Sequence[str] | None, length: int) -> Case:
        """The chat prompts so named among the built-in ones, or the first 24."""
        items = [item.chat() for item in built_in_prompts() if ids is None or item.id in ids][:24]
        text = self.checkpoint.tokenizer
        return Case([text.encode(text.apply_chat(item.prompt)) for item in items], length)  # type: ignore[arg-type]

    def plain(self, case: Case) -> list[Tokens]:
        """γ = 0, each prompt as long as the case asks."""
        if case.length not in self._plain:
            lengths = [case.length] * len(case.prompts)
            self._plain[case.length] = self.decode(Fixed(0), 4, case.prompts, lengths)
        return self._plain[case.length]

    def decode(
        self,
        policy: Policy,
        batch: int,
        prompts: Sequence[Tokens],
        lengths: Sequence[int],
        drafter: str = "ngram",
    ) -> list[Tokens]:
        """Greedy answers; one request joins before each step, so that they also leave one by one."""
        engine = self.engine(batch, drafter)
        controller = AdaptiveController(engine, policy=policy.clone())
        requests = [
            Request(prompt, Sampling(max_tokens=length), id=str(place))
            for place, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        outputs = run_all(engine, requests, per_step=1)
        assert not controller.stats().policy_errors
        return [tokens_of(outputs[str(place)]) for place in range(len(prompts))]

    @torch.inference_mode()
    def peer_logits(self, tokens: Tokens) -> Tensor:
        """`[T, V]`."""
        logits: Tensor = self.peer(torch.tensor([tokens])).logits[0]
        return logits

    def gap(self, prompt: Tokens) -> float:
        best, second = self.peer_logits(prompt)[-1].topk(2).values.tolist()
        return float(best - second)

    @torch.inference_mode()
    def peer_decode(self, prompts: Sequence[Tokens], lengths: Sequence[int]) -> list[Tokens]:
        answers = []
        for prompt, length in zip(prompts, lengths, strict=True):
            ids = torch.tensor([prompt])
            whole = self.peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False)
            answers.append(whole[0, len(prompt) :].tolist())
        return answers


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Real:
    return Real(load_gguf(smollm2_path))


def require_shipped(drafter: str) -> Path:
    folder = shipped_drafter("smollm2-135m", drafter)
    if folder is None:
        pytest.skip(f"no {drafter} drafter is in engine/data/drafters yet")
    return folder


def spread(answers: Sequence[Tokens]) -> list[Tokens]:
    """Answers of unequal lengths, so that requests leave at different times."""
    return [answer[: max(1, len(answer) - 8 * (place % 4))] for place, answer in enumerate(answers)]


def check_peer(real: Real, case: Case) -> None:
    ties = count_near_ties(case.prompts, real.plain(case), real.peer_decode, real.gap)
    print(f"\ntransformers: {len(case.prompts)} prompts × {case.length} tokens, {ties} near-ties")


def check_speculation(real: Real, case: Case, name: str, batch: int, drafter: str = "ngram") -> None:
    def decode(prompts: Sequence[Tokens], lengths: Sequence[int]) -> list[Tokens]:
        return real.decode(POLICIES[name], batch, prompts, lengths, drafter)

    ties = count_near_ties(case.prompts, spread(real.plain(case)), decode, real.gap)
    extent = f"{len(case.prompts)} prompts × up to {case.length} tokens"
    print(f"\n{name}, {drafter}, batch {batch}: {extent}, {ties} near-ties")


def test_logits_are_those_of_transformers(real: Real) -> None:
    """At the end of each prompt and after the tokens that follow, one request at a time, as transformers is run.

    Both are float32: each is up to about 1e-4 away from what float64 gives, and other widths round otherwise.
    """
    case = real.case(QUICK, length=4)
    engine = real.engine(max_batch=1)
    engine.attach(Cycling((0,)))
    worst = 0.0
    for prompt in case.prompts:
        engine.submit(Request(prompt, Sampling(max_tokens=case.length)))
        ours: list[Tensor] = []
        tokens = list(prompt)
        while not engine.scheduler.idle:
            for output in engine.step():
                ours.append(engine.runner._step.logits_NV[0].clone())
                tokens.extend(output.tokens)
        theirs = real.peer_logits(tokens[:-1])[len(prompt) - 1 :]
        worst = max(worst, float((torch.stack(ours) - theirs).abs().max()))
    print(f"\nlargest difference of a logit: {worst:.1e}")
    assert worst < 1e-4


def test_plain_decoding_is_that_of_transformers(real: Real) -> None:
    check_peer(real, real.case(QUICK, length=32))


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_speculation_gives_the_tokens_of_plain_decoding(real: Real, policy: str, batch: int) -> None:
    check_speculation(real, real.case(QUICK, length=32), policy, batch)


def test_drafting_with_itself_gives_the_tokens_of_plain_decoding(real: Real) -> None:
    check_speculation(real, real.case(QUICK, length=32), "fixed:3", 3, "itself")


@pytest.mark.parametrize("drafter", METHODS)
def test_the_packages_drafters_give_the_tokens_of_plain_decoding(real: Real, drafter: str) -> None:
    require_shipped(drafter)
    check_speculation(real, real.case(QUICK, length=32), "fixed:3", 3, drafter)


@pytest.mark.slow
def test_plain_decoding_is_that_of_transformers_on_many_prompts(real: Real) -> None:
    check_peer(real, real.case(None, length=64))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_speculation_gives_the_tokens_of_plain_decoding_on_many_prompts(real: Real, policy: str, batch: int) -> None:
    check_speculation(real, real.case(None, length=64), policy, batch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_drafting_with_itself_gives_the_tokens_of_plain_decoding_on_many(real: Real, policy: str, batch: int) -> None:
    check_speculation(real, real.case(None, length=64), policy, batch, "itself")
