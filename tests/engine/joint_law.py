"""The exact law of short sampled answers, and whether an engine's answers follow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.stats import chisquare
from torch import Tensor

from adaptive.contract import STANDARD, Acceptance
from adaptive.requests import Request, Sampling
from engine.models.config import ModelConfig
from tests.engine.tiny import (
    Cycling,
    Drafting,
    Shape,
    random_weights,
    reference_logits,
    run_all,
    tiny_engine,
    tokens_of,
)

SMALL = ModelConfig(
    vocab_size=4,
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    context_len=64,
)
PROMPT = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
SAMPLES = 6_000


def token_law(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """One step's distribution, written out: temperature, then the k most likely, then the nucleus of mass p."""
    probs = (logits_V / sampling.temperature).softmax(-1)
    order = probs.argsort(descending=True)
    if sampling.top_k:
        probs[order[sampling.top_k :]] = 0
        probs /= probs.sum()
    mass = 0.0
    for token in order:
        if mass >= sampling.top_p:
            probs[token] = 0
        mass += float(probs[token])
    return probs / probs.sum()


def joint_law(sampling: Sampling, seed: int, prompt: Sequence[int] = PROMPT) -> dict[tuple[int, ...], float]:
    """Exact probability of every four-token answer."""
    weights = random_weights(SMALL, seed)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(4):
        grown = {}
        for answer, chance in law.items():
            step = token_law(reference_logits(SMALL, weights, [*prompt, *answer])[-1], sampling)
            grown.update({(*answer, token): chance * float(p) for token, p in enumerate(step) if p > 0})
        law = grown
    return law


def sampled_answers(
    gammas: Sequence[Shape],
    sampling: Sampling,
    seed: int,
    draft_model: Drafting | None = None,
    acceptance: Acceptance = STANDARD,
    prompt: Sequence[int] = PROMPT,
    samples: int = SAMPLES,
    controller: Cycling | None = None,
) -> Counter[tuple[int, ...]]:
    """Many answers, drafted by copying unless by a model; some draft tokens stand and some do not.

    `gammas` may hold trees.
    """
    engine = tiny_engine(SMALL, max_batch=128, seed=seed, prefill_chunk=1024, draft_model=draft_model, max_tree_nodes=8)
    controller = controller or Cycling(gammas, acceptance)
    engine.attach(controller)
    requests = [
        Request(prompt, Sampling(4, sampling.temperature, sampling.top_k, sampling.top_p, seed=place), id=str(place))
        for place in range(samples)
    ]
    answers = Counter(tuple(tokens_of(outputs)) for outputs in run_all(engine, requests).values())
    if any(controller.gammas):
        drafted = sum(int(report.verified.clip(max=report.gamma).sum()) for report in controller.reports)  # one path
        accepted = sum(int(report.accepted.sum()) for report in controller.reports)
        assert 0.1 < accepted / drafted < 0.95, "both outcomes must be common for the test to mean something"
    return answers


def p_value(answers: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square of the counts against the law; cells below 5 expected are pooled."""
    assert set(answers) <= set(law), "an answer of probability 0 was sampled"
    total = sum(answers.values())
    big = [answer for answer, chance in law.items() if chance * total >= 5]
    observed = [answers[answer] for answer in big]
    expected = [law[answer] * total for answer in big]
    rest = total - sum(expected)
    if rest > 1e-6:
        observed.append(total - sum(observed))
        expected.append(rest)
    return float(chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue)
