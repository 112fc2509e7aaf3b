"""γ by an average of accepted tokens, on a ladder per range of batch sizes."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView, floor_gamma
from policies.ema_ladder import DEFAULT_TIERS, SGLANG_TIERS, Config, parse_tiers
from policies.ema_slot import Pacing, Slot


class EmaTiers:
    """Climb a ladder of γ while drafts are accepted, descend when they are not, try again from 0 now and then.

    `tiers` is SGLang's adaptive config: a ladder per lower bound of batch size, other keys are defaults for all of
    them; `rise_share` and `fall_share` are ours (see `Ladder`). `start` is the first γ (a ladder without it starts in
    its middle). Each further keyword switches one difference from SGLang: `credit` (a report counts only for the γ
    that produced it, and only its live rows that drafted), `dwell`, `trial`, `backoff` and `eager` (see `Pacing`).
    γ the engine does not offer are lowered to one it does. Binding again starts afresh.

    >>> from adaptive.contract import Capabilities
    >>> policy = EmaTiers()
    >>> policy.bind(Capabilities(gammas=(0, 1, 2, 4), batch_buckets=(1, 64))).gammas[1]
    (0, 1, 2, 4)
    >>> EmaTiers.sglang().gamma_at(8)
    3
    """

    def __init__(
        self,
        tiers: Config | None = None,
        *,
        start: int = 2,
        credit: bool = True,
        dwell: int = 3,
        trial: int = 16,
        backoff: int = 128,
        eager: bool = True,
        graph_batch_sizes: Sequence[int] | None = None,
    ) -> None:
        if start < 0:
            raise ValueError(f"start={start!r} is not valid: give the first gamma, 0 or above")
        self.tiers = DEFAULT_TIERS if tiers is None else tiers
        self.start = start
        self.credit = credit
        self.pacing = Pacing(dwell, trial, backoff, eager)
        self.graph_batch_sizes = tuple(sorted(graph_batch_sizes or ()))
        self._ladders = parse_tiers(self.tiers)
        self._bounds = list(self._ladders)
        self._slots = self._fresh_slots()
        self._batch = 0

    @classmethod
    def sglang(
        cls,
        config: Config | str | Path | None = None,
        initial_steps: int | None = None,
        graph_batch_sizes: Sequence[int] | None = None,
    ) -> Self:
        """SGLang 0.5.23's own policy, equal to the bit. Its file (or the same as a mapping), its defaults, its errors.

        `initial_steps` None is the upper median of all candidates, as `--speculative-num-steps` is when not given;
        `graph_batch_sizes` are the captured batch sizes a batch is padded to before it is routed.
        """
        tiers = SGLANG_TIERS if config is None else _read(config)
        if initial_steps is None:
            union = sorted({step for ladder in parse_tiers(tiers).values() for step in ladder.candidate_steps})
            initial_steps = union[len(union) // 2]
        return cls(
            tiers,
            start=initial_steps,
            credit=False,
            dwell=0,
            backoff=0,
            eager=False,
            graph_batch_sizes=graph_batch_sizes,
        )

    def gamma_at(self, num_decode: int) -> int:
        """The γ now chosen at this batch size."""
        return self._route(num_decode).gamma

    def averages(self) -> dict[int, float]:
        """Accepted tokens per row and step, as now estimated, by lower bound of batch size."""
        return {bound: slot.ema for bound, slot in zip(self._bounds, self._slots, strict=True)}

    def bind(self, caps: Capabilities) -> Needs:
        self._slots = self._fresh_slots(caps.gammas)
        self._batch = 0
        gammas: dict[int, tuple[int, ...]] = {}
        smallest = 1
        for bucket in caps.batch_buckets:
            routed = [self._route(size).rungs for size in range(smallest, bucket + 1)]
            gammas[bucket] = tuple(sorted({0}.union(*routed)))
            smallest = bucket + 1
        return Needs(gammas, self_paced=True)

    def decide(self, view: StepView) -> Decision:
        self._batch = view.num_decode
        return self._route(view.num_decode).decision

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        accepted_B = report.accepted
        if not self.credit:
            slot = self._route(len(accepted_B))
        else:
            slot = self._route(view.num_decode)
            if report.gamma != slot.gamma:
                return
            if not slot.gamma:
                slot.observe(0.0)  # no row drafts, yet the step counts towards the next probe
                return
            counted_B = report.live & (report.drafted > 0)
            if np.count_nonzero(counted_B) < len(accepted_B):
                accepted_B = accepted_B[counted_B]
        if len(accepted_B):
            slot.observe(int(np.add.reduce(accepted_B)) / len(accepted_B))

    def forget(self, rows: Sequence[int]) -> None:
        """Evidence leaves with its requests: waits shrink by their share of the batch."""
        if self.pacing.backoff and rows:
            share = min(len(rows) / max(self._batch, 1), 1.0)
            for slot in self._slots:
                slot.ease(share)

    def clone(self) -> Self:
        return type(self)(
            self.tiers,
            start=self.start,
            credit=self.credit,
            dwell=self.pacing.dwell,
            trial=self.pacing.trial,
            backoff=self.pacing.backoff,
            eager=self.pacing.eager,
            graph_batch_sizes=self.graph_batch_sizes,
        )

    def _fresh_slots(self, offered: Sequence[int] | None = None) -> list[Slot]:
        """One slot per range of batch sizes, its rungs lowered to what is offered (None: everything is)."""
        slots = []
        for ladder in self._ladders.values():
            rungs = ladder.candidate_steps
            if offered is not None:
                rungs = tuple(sorted({floor_gamma(offered, gamma) for gamma in rungs}))
            start = self.start if self.start in rungs else rungs[len(rungs) // 2]
            slots.append(Slot(replace(ladder, candidate_steps=rungs), start, self.pacing))
        return slots

    def _route(self, size: int) -> Slot:
        """The slot whose range holds this batch size, after padding to a captured one."""
        graphs = self.graph_batch_sizes
        if graphs and size <= graphs[-1]:
            size = graphs[bisect_left(graphs, size)]
        return self._slots[max(bisect_right(self._bounds, size) - 1, 0)]


def _read(config: Config | str | Path) -> Config:
    if not isinstance(config, str | Path):
        return config
    tiers: Config = json.loads(Path(config).read_text(encoding="utf-8"))
    return tiers
