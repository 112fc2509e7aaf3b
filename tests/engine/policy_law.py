"""Answers that an engine samples under a policy, the exact law they should have, and how small a bias would be seen.

Target and drafter are random decoders of three tokens, so that four tokens have 81 possible answers. Both are read at
temperature 1, where the signals that policies see are those of the distributions that tokens are drawn from.

Shapes: V vocabulary, B rows, G draft tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import torch
from scipy.stats import chi2, ncx2

from adaptive import AdaptiveController
from adaptive.contract import FloatArray, IntArray, Policy
from adaptive.requests import Sampling
from adaptive.stats import ControllerStats
from engine import EngineConfig, LLMEngine
from engine.models.decoder import Decoder
from tests.engine.joint_law import SMALL
from tests.engine.tiny import DraftModel, near_weights, random_weights, reference_logits

Answer = tuple[int, ...]
Law = Mapping[Answer, float]
Lengths = Callable[[FloatArray], IntArray]
"""Confidences `[B, G]` of drafted tokens, nan where none was, to the number of them that each row verifies `[B]`."""

MODEL = replace(SMALL, vocab_size=3)


def softened(weights: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """Logits at this share of what they were: no answer is very unlikely."""
    return {**weights, "model.norm.weight": share * weights["model.norm.weight"]}


TARGET = softened(random_weights(MODEL, seed=5), 0.3)
OTHER = softened(random_weights(MODEL, seed=14), 0.3)
"""A drafter that is another model altogether, right about two times in three."""
TWIN = softened(near_weights(MODEL, seed=5, noise=0.05), 0.3)
"""A drafter that is nearly always right."""
PROMPT = (1,)
TOKENS, GAMMA = 4, 3
ROWS, ARRIVALS = 160, 60
FEWEST = 5.0
"""Expected answers of a cell that is counted by itself."""


# --- the engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """Answers in the order of their requests, and what the controller counted meanwhile."""

    answers: Sequence[Answer]
    stats: ControllerStats


def serve(
    policy: Policy,
    samples: int,
    *,
    rows: int = ROWS,
    together: bool = False,
    temperatures: Sequence[float] = (1.0,),
    draft: Mapping[str, torch.Tensor] = OTHER,
    mended: Collection[str] = (),
) -> Served:
    """Answers of four tokens through the whole engine, `policy` deciding; `temperatures` are the requests' in turn.

    Each request has its own seed. Before each step `ARRIVALS` join, so that batches change and requests of all ages
    meet; or, `together`, as many as there are rows once all are gone, each in the row of its place. Time stands still,
    so that a run is the same whatever the machine does meanwhile. `mended` are the kinds of illegal answers that the
    guard has to correct, and no others.
    """
    controller = AdaptiveController(_engine(rows, draft), policy)
    said: dict[str, list[int]] = {str(place): [] for place in range(samples)}
    waiting, running = list(said), 0
    while waiting or running:
        joining = (0 if running else rows) if together else ARRIVALS
        for name in waiting[:joining]:
            temperature = temperatures[int(name) % len(temperatures)]
            controller.submit(PROMPT, Sampling(TOKENS, temperature=temperature, seed=int(name)), id=name)
        running += len(waiting[:joining])
        del waiting[:joining]
        for output in controller.step():
            said[output.request_id].extend(output.tokens)
            running -= output.finished
    stats = controller.stats()
    assert not stats.policy_errors, stats.last_error
    assert set(stats.clamped) == set(mended), stats.last_error
    return Served([tuple(tokens) for tokens in said.values()], stats)


def _engine(rows: int, draft: Mapping[str, torch.Tensor]) -> LLMEngine:
    settings = EngineConfig(
        max_batch=rows, context_len=32, max_gamma=5, max_tree_nodes=6, dtype="float64", prefix_reuse=False
    )
    decoder = Decoder(MODEL, TARGET, settings.context_len, settings.device)
    drafter = DraftModel(MODEL, draft).drafter(settings, MODEL.vocab_size)
    return LLMEngine(decoder, settings, drafter=drafter, clock=lambda: 0.0)


# --- laws ----------------------------------------------------------------------------------------------------------


@cache
def target_after(answer: Answer) -> FloatArray:
    """p `[V]` after the prompt and some tokens."""
    return _after(TARGET, answer)


@cache
def draft_after(answer: Answer) -> FloatArray:
    """q `[V]` of `OTHER` after the prompt and some tokens."""
    return _after(OTHER, answer)


def _after(weights: dict[str, torch.Tensor], answer: Answer) -> FloatArray:
    probs: FloatArray = reference_logits(MODEL, weights, [*PROMPT, *answer])[-1].softmax(-1).numpy()
    return probs


def every_answer(length: int = TOKENS) -> list[Answer]:
    return list(product(range(MODEL.vocab_size), repeat=length))


def exact_law(length: int = TOKENS) -> Law:
    """The target's own."""
    return {
        answer: float(np.prod([target_after(answer[:place])[token] for place, token in enumerate(answer)]))
        for answer in every_answer(length)
    }


def pair_law() -> Law:
    """Of the first two tokens of two answers that have nothing to do with each other."""
    two = exact_law(TOKENS // 2)
    return {one + other: two[one] * two[other] for one, other in product(two, two)}


def pairs_of(answers: Sequence[Answer]) -> list[Answer]:
    """The first two tokens of both, for requests 0 and 1, 2 and 3, ...."""
    half = TOKENS // 2
    return [one[:half] + other[:half] for one, other in zip(answers[::2], answers[1::2], strict=True)]


def law_under(lengths: Lengths, *, peeking: bool = False) -> Law:
    """The law of four tokens where `lengths` decides, once all are drafted, how many to verify by exact rejection.

    It goes by the largest probability of the distributions that tokens are drawn from; `peeking`, by the probability
    of what was drawn.
    """
    reached: dict[Answer, float] = {(): 1.0}
    for length in range(TOKENS):
        for answer in [answer for answer in reached if len(answer) == length]:
            chance = reached.pop(answer)
            for block, share in _blocks(answer, lengths, peeking).items():
                longer = answer + block
                reached[longer] = reached.get(longer, 0.0) + chance * share
    return reached


def _blocks(answer: Answer, lengths: Lengths, peeking: bool) -> dict[Answer, float]:
    """What one step may emit, and how likely."""
    law: dict[Answer, float] = {}
    depth = min(GAMMA, TOKENS - len(answer) - 1)
    for path in every_answer(depth):
        q_GV = [draft_after(answer + path[:place]) for place in range(depth)]
        drawn_G = [float(q_V[token]) for q_V, token in zip(q_GV, path, strict=True)]
        seen_BG = np.full((1, GAMMA), np.nan)
        seen_BG[0, :depth] = drawn_G if peeking else [q_V.max() for q_V in q_GV]
        verified = min(int(lengths(seen_BG)[0]), depth)
        chance = float(np.prod(drawn_G))
        for place in range(verified):
            p_V, q_V, token = target_after(answer + path[:place]), q_GV[place], path[place]
            stands = min(1.0, float(p_V[token] / q_V[token]))
            left_V = np.maximum(p_V - q_V, 0)
            if stands < 1:
                _add(law, path[:place], chance * (1 - stands) * left_V / left_V.sum())
            chance *= stands
        _add(law, path[:verified], chance * target_after(answer + path[:verified]))
    return law


def _add(law: dict[Answer, float], block: Answer, chance_V: FloatArray) -> None:
    for token, chance in enumerate(chance_V.tolist()):
        law[(*block, token)] = law.get((*block, token), 0.0) + chance


# --- the test ------------------------------------------------------------------------------------------------------


def _pooled(law: Law, samples: int) -> list[list[Answer]]:
    """Cells of at least `FEWEST` expected answers, the others together in one."""
    big = [[answer] for answer, chance in law.items() if chance * samples >= FEWEST]
    rest = [answer for answer, chance in law.items() if chance * samples < FEWEST]
    return [*big, rest] if rest else big


def _sums(cells: list[list[Answer]], amounts: Mapping[Answer, float]) -> FloatArray:
    return np.array([sum(amounts.get(answer, 0.0) for answer in cell) for cell in cells])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pearson's chi-square of sampled answers against a law, and what it says."""

    statistic: float
    freedom: int
    samples: int

    @property
    def p_value(self) -> float:
        """How likely answers as far from the law are, were they drawn from it."""
        return float(chi2.sf(self.statistic, self.freedom))

    @property
    def effect(self) -> float:
        """An unbiased estimate of the chi-square distance Σ (p' - p)² / p between the answers' law p' and p."""
        return (self.statistic - self.freedom) / self.samples

    @property
    def effect_error(self) -> float:
        """Standard error of `effect`: that of a noncentral chi-square."""
        return float(np.sqrt(2 * self.freedom + 4 * max(self.statistic - self.freedom, 0.0))) / self.samples


def judge(answers: Sequence[Answer], law: Law) -> Verdict:
    """ValueError for an answer that has no probability."""
    impossible = set(answers) - set(law)
    if impossible:
        raise ValueError(f"{impossible} were sampled, which have no probability")
    cells = _pooled(law, len(answers))
    expected = len(answers) * _sums(cells, law)
    statistic = float(((_sums(cells, Counter(answers)) - expected) ** 2 / expected).sum())
    return Verdict(statistic, len(cells) - 1, len(answers))


def effect_of(biased: Law, law: Law, samples: int) -> float:
    """The chi-square distance Σ (p' - p)² / p of a biased law, over the cells that so many samples make."""
    cells = _pooled(law, samples)
    return float(((_sums(cells, biased) - _sums(cells, law)) ** 2 / _sums(cells, law)).sum())


def power(effect: float, law: Law, samples: int, level: float) -> float:
    """The chance that answers at this chi-square distance are refused at `level`: the statistic is then noncentral."""
    freedom = len(_pooled(law, samples)) - 1
    return float(ncx2.sf(chi2.isf(level, freedom), freedom, samples * effect))
