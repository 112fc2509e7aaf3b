"""Small policies with a word between two draft tokens, lawful ones and offenders, and random numbers that are reused.

Shapes: B rows of the step, G = γ, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.contract import (
    BoolArray,
    Capabilities,
    Confidence,
    Decision,
    DraftProgress,
    FloatArray,
    IntArray,
    Needs,
    StepReport,
    StepView,
)
from engine.batch import RowState
from engine.drafters import DraftKey, ModelDrafter
from engine.drafters.stepwise import DraftsBefore
from engine.sampling.randomness import ACCEPT, uniform
from engine.step import DecodeStep, StepKey
from policies import AdaSpec
from policies.cost import StepCost
from tests.engine.policy_law import GAMMA, Lengths

Extend = Callable[[DraftProgress], BoolArray]
Trim = Callable[[DraftProgress], IntArray]

GRAPHS = (*(1 << power for power in range(6)), *range(64, 2048, 32))
"""Captured widths as AdaSpec's authors have them: powers of two up to 32, then multiples of 32."""
COST = StepCost(draft=(0.001, 0, 0, 0), verify=(0.03, 0, 0.0003, 0, 0), plain=(0.03, 0.0003, 0), widths=GRAPHS)


def confidence_of(progress: DraftProgress) -> FloatArray:
    return progress.signals["top_prob"]


# --- policies ------------------------------------------------------------------------------------------------------


class Deep:
    """γ tokens at every step, unless `extend` ends drafting earlier or `trim` verifies fewer. Keeps nothing."""

    def __init__(self, extend: Extend | None = None, trim: Trim | None = None) -> None:
        self._extend, self._trim = extend, trim

    def bind(self, caps: Capabilities) -> Needs:
        return replace(
            Needs.everywhere(caps, (GAMMA,), self_paced=True),
            signals=frozenset({"top_prob"}),
            stepwise=self._extend is not None,
            trim=self._trim is not None,
            budget=True,
        )

    def decide(self, view: StepView) -> Decision:
        return Decision(GAMMA, reason="deep")

    def extend(self, progress: DraftProgress) -> BoolArray:
        assert self._extend is not None, "only what needs say is asked"
        return self._extend(progress)

    def trim(self, progress: DraftProgress) -> IntArray:
        assert self._trim is not None, "only what needs say is asked"
        return self._trim(progress)

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """Nothing to learn."""

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> Self:
        return type(self)(self._extend, self._trim)


class Tight(Deep):
    """Of the draft tokens a third is verified: those that the drafter is surest of, whoever's they are."""

    def decide(self, view: StepView) -> Decision:
        sharp = Confidence("top_prob", np.full(GAMMA, 12.0), np.full(GAMMA, -7.0))
        return Decision(GAMMA, verify=2 * len(view.rows), confidence=sharp)


class OnGraphs(AdaSpec):
    """AdaSpec, on graphs of its authors' widths."""

    def bind(self, caps: Capabilities) -> Needs:
        return super().bind(replace(caps, packed_widths=GRAPHS))


class Unguarded(OnGraphs):
    """Takes every row to be greedy, so that sampled rows are cut as well: the published rule."""

    def decide(self, view: StepView) -> Decision:
        return super().decide(replace(view, greedy=np.ones(len(view.rows), np.bool_)))


# --- how far to verify ---------------------------------------------------------------------------------------------


def cutting(lengths: Lengths) -> Deep:
    """Verifies as many draft tokens of a row as `lengths` makes of their confidences."""
    return Deep(trim=lambda progress: lengths(confidence_of(progress)))


def drop_unsure(confidence_BG: FloatArray) -> IntArray:
    """Tokens before the first of confidence below .5, which is dropped."""
    lens_B: IntArray = (np.nan_to_num(confidence_BG) >= 0.5).cumprod(1).sum(1)
    return lens_B


STEPS_PER_S = np.array([1, 0.7, 0.5, 0.45])
"""By draft tokens verified."""


def goodput(confidence_BG: FloatArray) -> FloatArray:
    """Tokens per second `[B, G + 1]` where 0 ... G draft tokens are verified."""
    survival_BG = np.nan_to_num(confidence_BG).cumprod(1)
    expected_BW = 1 + np.concatenate([np.zeros((len(survival_BG), 1)), survival_BG.cumsum(1)], 1)
    speed_BW: FloatArray = expected_BW * STEPS_PER_S
    return speed_BW


def best_of_all(confidence_BG: FloatArray) -> IntArray:
    """The length of most goodput: what is known after a token decides about it."""
    lens_B: IntArray = goodput(confidence_BG).argmax(1)
    return lens_B


def first_best(confidence_BG: FloatArray) -> IntArray:
    """The length after which goodput first drops, as a scheduler does that looks at tokens in order."""
    rises_BG = np.diff(goodput(confidence_BG), axis=1) > 0
    lens_B: IntArray = rises_BG.cumprod(1).sum(1)
    return lens_B


# --- rows that are bound together ----------------------------------------------------------------------------------


def of_neighbours(values_B: FloatArray, rows_B: IntArray) -> FloatArray:
    """Each row's value replaced by that of the other row of its pair (0 and 1, 2 and 3, ...), its own where alone."""
    other_B = np.searchsorted(rows_B, rows_B ^ 1).clip(max=len(rows_B) - 1)
    paired_B = rows_B[other_B] == rows_B ^ 1
    return np.where(paired_B, values_B[other_B], values_B)


def while_neighbour_is_sure(progress: DraftProgress) -> BoolArray:
    return of_neighbours(np.nan_to_num(confidence_of(progress)), progress.rows) > 0.6


def while_first_row_is_sure(progress: DraftProgress) -> BoolArray:
    """One row speaks for all."""
    confidence_B = confidence_of(progress)
    return np.full(len(confidence_B), bool(np.nan_to_num(confidence_B[0]) > 0.6))


def by_neighbours_second(progress: DraftProgress) -> IntArray:
    """All or nothing, by the confidence in the other row's second token, which follows from its first.

    What a row drew says nothing of its own tokens, so that each row by itself keeps its law. But each decides whether
    the other's first token is verified: both together do not.
    """
    second_B = np.nan_to_num(confidence_of(progress)[:, 1])
    return np.where(of_neighbours(second_B, progress.rows) > 0.6, GAMMA, 0)


# --- what must not be done -----------------------------------------------------------------------------------------


def unguard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller lets `trim` cut whatever it likes."""
    monkeypatch.setattr("adaptive.guard.lawful", lambda verify, *_: verify)


def peek(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confidence becomes the probability of the token that was drawn, which the contract keeps from policies."""
    honest = ModelDrafter.draft

    def draft(drafter: ModelDrafter, state: RowState, key: DraftKey, position: int) -> None:
        honest(drafter, state, key, position)
        drawn_B1 = state.drafts_RM[: key.batch, position].unsqueeze(1)
        q_BV = drafter.q_RMV[: key.batch, position]
        state.signals_SRM[0, : key.batch, position].copy_(q_BV.gather(1, drawn_B1).squeeze(1))

    monkeypatch.setattr(ModelDrafter, "draft", draft)


def key_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One number per purpose and place in the text: what is drafted and judged again meets the same."""
    honest = DraftsBefore._sample

    def numbers(step: DecodeStep, key: StepKey, count: int, stream: int) -> Tensor:
        seeds_B1, lens_B1 = (buffer[: key.batch].unsqueeze(1) for buffer in (step.state.seeds_R, step.state.lens_R))
        return uniform(seeds_B1, torch.zeros_like(seeds_B1), lens_B1 + torch.arange(count), stream)

    def sample(drafter: DraftsBefore, state: RowState, key: DraftKey, position: int, logits_BD: Tensor) -> Tensor:
        def number(seeds_B: Tensor, steps_B: Tensor, positions_B: Tensor, stream: int) -> Tensor:
            return uniform(seeds_B, torch.zeros_like(steps_B), state.lens_R[: key.batch] + positions_B, stream)

        with monkeypatch.context() as patch:
            patch.setattr("engine.drafters.stepwise.uniform", number)
            return honest(drafter, state, key, position, logits_BD)

    monkeypatch.setattr(DecodeStep, "_uniforms", numbers)
    monkeypatch.setattr(DraftsBefore, "_sample", sample)


def key_by_draft_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers at every step of a request."""

    def numbers(seeds: Tensor, steps: Tensor, positions: Tensor, stream: int) -> Tensor:
        return uniform(seeds, torch.zeros_like(steps), positions, stream)

    _replace_uniform(monkeypatch, numbers)


def key_without_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers for every request."""

    def numbers(seeds: Tensor, steps: Tensor, positions: Tensor, stream: int) -> Tensor:
        return uniform(torch.zeros_like(seeds), steps, positions, stream)

    _replace_uniform(monkeypatch, numbers)


def judge_by_drafts_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that drew a draft token also judges it."""
    monkeypatch.setattr("engine.drafters.stepwise.DRAFT", ACCEPT)


def _replace_uniform(monkeypatch: pytest.MonkeyPatch, numbers: Callable[..., Tensor]) -> None:
    for module in ("engine.step", "engine.drafters.stepwise"):
        monkeypatch.setattr(f"{module}.uniform", numbers)
