"""Signals are what the distributions say, found again without the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from adaptive.contract import DRAFT_SIGNALS, TARGET_SIGNALS, Capabilities, Needs, Signal, StepReport
from adaptive.requests import Request, Sampling
from engine.core import LLMEngine
from engine.signals import entropy_bits, js_distance
from tests.engine.test_model_drafter import FAR, ITSELF, NEAR, OTHER
from tests.engine.tiny import TINY, Cycling, DraftModel, random_weights, reference_logits, run_all, tiny_engine

REQUESTS = [
    Request([1, 2, 3, 1, 2], Sampling(max_tokens=14)),
    Request([4], Sampling(max_tokens=12, temperature=0.5, top_k=3, seed=3)),
    Request([9, 9, 3, 9, 9], Sampling(max_tokens=16, temperature=1.5, seed=4)),
]
SMALLER = replace(OTHER, vocab_size=8)
DRAFTS = {"near": NEAR, "far": FAR, "fewer ids": DraftModel(SMALLER, random_weights(SMALLER, seed=6))}


@dataclass
class Checking(Cycling):
    """Asks for signals, and recomputes each of them from the text when it is reported."""

    engine: LLMEngine
    draft: DraftModel | None
    wanted: frozenset[Signal]
    checked: int = 0
    seen: set[Signal] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__((4, 0, 2, 4))

    def attach(self, caps: Capabilities) -> Needs:
        return replace(super().attach(caps), signals=self.wanted)

    def report(self, report: StepReport) -> None:
        super().report(report)
        if report.gamma == 0:
            return
        assert report.signals is not None
        assert set(report.signals) == self.wanted - {"match_len"}
        for place, row in enumerate(report.rows.tolist()):
            length, stood = int(self.views[-1].context_lens[place]), int(report.accepted[place])
            history = self.engine.state.history_RP[row, : length + stood].tolist()
            text, drafts = history[:length], history[length:]
            if self.draft is not None:  # copied drafts are those of the next step by now
                drafts = self.engine.state.drafts_RM[row].tolist()
            for position in range(report.gamma):
                for name, values in report.signals.items():
                    known = report.verified if name in TARGET_SIGNALS else report.drafted
                    if position >= known[place]:
                        assert np.isnan(values[place, position])
                        continue
                    if position > len(drafts):
                        continue
                    expected = self.expected(name, [*text, *drafts[:position]])
                    assert values[place, position] == pytest.approx(expected, abs=1e-7)
                    self.checked += 1
                    self.seen.add(name)

    def expected(self, name: Signal, text: list[int]) -> float:
        p = law(ITSELF, text)
        if name == "target_entropy":
            return float(entropy(p, base=2))
        assert self.draft is not None
        config = self.draft.config
        known = [min(token, config.vocab_size - 1) for token in text]
        q = np.pad(law(self.draft, known), (0, TINY.vocab_size - config.vocab_size))
        best = np.sort(q)[::-1]
        draft = {"top_prob": best[0], "margin": best[0] - best[1], "entropy": entropy(q, base=2)}
        return float(draft[name] if name in draft else jensenshannon(p, q, base=2))


LAWS: dict[tuple[int, ...], NDArray[np.float64]] = {}
"""Known already, by the model and the text."""


def law(model: DraftModel, text: list[int]) -> NDArray[np.float64]:
    """The next token's distribution, at temperature 1."""
    place = (id(model), *text)
    if place not in LAWS:
        LAWS[place] = reference_logits(model.config, dict(model.weights), text)[-1].softmax(-1).numpy()
    return LAWS[place]


@pytest.mark.parametrize(
    ("draft", "backend"), [("near", "eager"), ("far", "eager"), ("fewer ids", "late"), ("near", "replay")]
)
def test_signals_are_what_the_distributions_say(draft: str, backend: str) -> None:
    rows = 1 if backend == "replay" else 3
    engine = tiny_engine(max_batch=rows, max_gamma=4, draft_model=DRAFTS[draft], backend=backend)
    controller = Checking(engine, DRAFTS[draft], frozenset((*DRAFT_SIGNALS, *TARGET_SIGNALS)))
    engine.attach(controller)
    run_all(engine, REQUESTS, per_step=1)
    assert controller.seen == controller.wanted
    assert controller.checked > 150


@pytest.mark.parametrize("name", [*DRAFT_SIGNALS, *TARGET_SIGNALS])
def test_a_signal_comes_alone_where_it_alone_is_asked_for(name: Signal) -> None:
    engine = tiny_engine(max_batch=3, max_gamma=4, draft_model=NEAR)
    controller = Checking(engine, NEAR, frozenset({name}))
    engine.attach(controller)
    run_all(engine, REQUESTS, per_step=1)
    assert controller.checked > 30


def test_copied_drafts_have_the_targets_entropy_alone() -> None:
    engine = tiny_engine(max_batch=3, max_gamma=4)
    assert engine.capabilities().drafters["ngram"].signals == {"match_len", "target_entropy"}
    controller = Checking(engine, None, frozenset({"target_entropy", "match_len"}))
    engine.attach(controller)
    run_all(engine, REQUESTS, per_step=1)
    assert controller.checked > 15


def test_the_dense_distribution_is_kept_only_for_who_needs_it() -> None:
    engine = tiny_engine(draft_model=NEAR)
    engine.attach(Checking(engine, NEAR, frozenset({"entropy", "target_entropy"})))
    assert getattr(engine.drafter, "plain_RMV") is None  # noqa: B009 - any drafter
    engine.attach(Checking(engine, NEAR, frozenset({"js"})))
    assert getattr(engine.drafter, "plain_RMV") is not None  # noqa: B009


def test_extremes() -> None:
    sure, even = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.full((4,), 0.25)
    assert entropy_bits(torch.stack([sure, even])).tolist() == [0, 2]
    assert js_distance(sure, sure).item() == 0
    assert js_distance(sure, sure.flip(0)).item() == pytest.approx(1)
    p = torch.tensor([0.3, 0.7], dtype=torch.float64)
    assert 0 <= js_distance(p, p * (1 + 1e-16)).item() < 1e-7, "rounding leaves no root of a negative number"
    assert math.isclose(js_distance(p, p.flip(0)).item(), float(jensenshannon(p, p.flip(0), base=2)))
