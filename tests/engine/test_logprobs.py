"""Reported log-probabilities are those of a full recomputation, under the target itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptive.requests import Output, Request, Sampling, TokenLogprob
from engine.models.config import ModelConfig
from tests.engine.tiny import TINY, Cycling, random_weights, reference_logits, run_all, tiny_engine, tokens_of

WIDE = replace(TINY, vocab_size=40)
PROMPT = [1, 2, 3, 1, 2]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=15),
    "sampled": Sampling(max_tokens=15, temperature=1.4, seed=5),
    "filtered": Sampling(max_tokens=15, temperature=0.8, top_k=4, top_p=0.9, seed=6),
}


def reported(outputs: Sequence[Output]) -> list[TokenLogprob]:
    return [entry for output in outputs for entry in output.logprobs or ()]


def check(config: ModelConfig, outputs: Sequence[Output], asked: int) -> None:
    weights, tokens, entries = random_weights(config), tokens_of(outputs), reported(outputs)
    assert [entry.token for entry in entries] == tokens
    laws = reference_logits(config, weights, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1].log_softmax(-1)
    for law, entry in zip(laws, entries, strict=True):
        best = law.topk(min(asked, config.vocab_size))
        assert entry.logprob == pytest.approx(float(law[entry.token]), abs=1e-5)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("asked", [0, 3, 20])
@pytest.mark.parametrize("gamma", [0, 5])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("config", [TINY, WIDE], ids=["11 tokens", "40 tokens"])
def test_logprobs_are_those_of_the_reference(config: ModelConfig, sampling: Sampling, gamma: int, asked: int) -> None:
    engine = tiny_engine(config)
    engine.attach(Cycling((gamma,)))
    outputs = run_all(engine, [Request(PROMPT, replace(sampling, logprobs=asked), id="one")])["one"]
    check(config, outputs, asked)


def test_each_row_gets_what_it_asked_for() -> None:
    engine = tiny_engine()
    engine.attach(Cycling((4, 1, 0)))
    asked = {"none": None, "one": 1, "all": 11}
    outputs = run_all(engine, [Request(PROMPT, Sampling(15, logprobs=count), id=name) for name, count in asked.items()])
    assert all(output.logprobs is None for output in outputs["none"])
    check(TINY, outputs["one"], 1)
    check(TINY, outputs["all"], 11)


def test_an_answer_cut_inside_a_block_reports_no_more_than_its_tokens() -> None:
    engine = tiny_engine()
    engine.attach(Cycling((5,)))
    whole = tokens_of(run_all(engine, [Request(PROMPT, Sampling(30), id="whole")])["whole"])
    for token in set(whole):
        sampling = Sampling(30, stop_token_ids=(token,), logprobs=2)
        outputs = run_all(engine, [Request(PROMPT, sampling, id=str(token))])[str(token)]
        assert len(tokens_of(outputs)) == whole.index(token) + 1
        check(TINY, outputs, 2)
