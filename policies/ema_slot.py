"""The learned state of one ladder: an average of accepted tokens, the rung it leads to, and gates around the moves.

The rule is SGLang's (0.5.14 to 0.5.23, `speculative/adaptive_spec_params.py`): the same float operations in the same
order, so that its averages are equal to the bit. `Pacing` adds gates around that rule; by default none is shut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptive.contract import Decision
from policies.ema_ladder import Ladder

SATURATION = 0.9  # share of γ from which on an observation says little but that γ was too small


@dataclass(frozen=True, slots=True)
class Pacing:
    """Gates around the rule, in reports that the slot learnt from. The default gates nothing.

    A switch is followed by `dwell` reports without another. A climb that is undone within `trial` reports has failed:
    that rung is not left upwards again for a wait that doubles with each failure, from `trial` up to `backoff`, and
    halves with each climb that lasts; 0 is not left before its wait either (`backoff` 0: never wait). `eager`: a rung
    on which everything was accepted since the last judgement is left by two rungs at once, and a probe from 0 starts
    from an average midway between its two thresholds instead of the frozen one.
    """

    dwell: int = 0
    trial: int = 16
    backoff: int = 0
    eager: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("dwell", self.dwell, 0), ("trial", self.trial, 1), ("backoff", self.backoff, 0)):
            if value < least:
                raise ValueError(f"{name}={value!r} is not valid: give a number of reports, {least} or above")

    @property
    def first_wait(self) -> int:
        return min(self.trial, self.backoff)


class Slot:
    """The learned state of one ladder: its γ, the average it goes by, and what became of its climbs."""

    def __init__(self, ladder: Ladder, start: int, pacing: Pacing) -> None:
        """`start` must be a rung."""
        self.ladder = ladder
        self.pacing = pacing
        self.rungs = ladder.candidate_steps
        self.index = self.rungs.index(start)
        self.gamma = start
        self.ema = float(start - 1)
        self.reports = 0
        self.decision = Decision(start, reason="start")
        self._keep = 1 - ladder.ema_alpha
        self._rise_above = ladder.rise_above()
        self._fall_at = ladder.fall_at()
        self._saturated = True  # since the last judgement
        self._switched_at = -pacing.dwell
        self._climb: tuple[int, int] | None = None  # rung left, report count then; None once it failed or lasted
        self._waits = [pacing.first_wait] * len(self.rungs)
        self._closed_until = [0] * len(self.rungs)
        self._closed_until[0] = pacing.first_wait if start == 0 else 0
        self._open_at, self._backed_off = max(self._closed_until), False  # whether there is a wait to shorten

    def observe(self, accepted: float) -> None:
        """Learn one report's mean accepted tokens per row; at γ = 0 it only counts as time passed."""
        ladder = self.ladder
        if self.gamma > 0:
            self.ema = self._keep * self.ema + ladder.ema_alpha * accepted
            self._saturated = self._saturated and accepted >= SATURATION * self.gamma
        self.reports += 1
        judged = self.reports - ladder.warmup_batches
        if judged > 0 and judged % ladder.update_interval == 0:
            if self.reports - self._switched_at >= self.pacing.dwell:
                self._move(self._target())
            self._saturated = True

    def ease(self, share: float) -> None:
        """This share of the evidence was about requests that have left: shorten all waits by it."""
        if self.reports >= self._open_at and not self._backed_off:
            return
        for index, wait in enumerate(self._waits):
            self._waits[index] = max(math.ceil(wait * (1 - share)), self.pacing.first_wait)
            self._closed_until[index] -= math.ceil(max(self._closed_until[index] - self.reports, 0) * share)
        self._open_at = max(self._closed_until)
        self._backed_off = max(self._waits) > self.pacing.first_wait

    def _target(self) -> int:
        """The rung the rule asks for."""
        index, last = self.index, len(self.rungs) - 1
        if self.gamma == 0:
            return min(index + 1, last)
        while index > 0 and self.ema <= self._fall_at[index - 1]:
            index -= 1
        if index == self.index:
            while index < last and self.ema > self._rise_above[index]:
                index += 1
            if index > self.index and self.pacing.eager and self._saturated:
                index = min(max(index, self.index + 2), last)
        return self._capped(index)

    def _capped(self, index: int) -> int:
        """SGLang's ceiling: it lowers a rung that was kept or fallen to, but never takes back a climb."""
        if self.ladder.ceiling_coeff > 0 and index <= self.index:
            ceiling = max(1, math.ceil(self.ema * self.ladder.ceiling_coeff))
            while index > 0 and self.rungs[index] > ceiling:
                index -= 1
        return index

    def _move(self, target: int) -> None:
        self._settle(target)
        if target == self.index or (target > self.index and self.reports < self._closed_until[self.index]):
            return
        if self.gamma == 0:
            self._start_probe(target)
            reason = "probe"
        else:
            reason = "climb" if target > self.index else "fall"
        if target > self.index:
            self._climb = (self.index, self.reports)
        self.index = target
        self.gamma = self.rungs[target]
        if self.gamma == 0:
            self._close(target)
            reason = "off"
        self._switched_at = self.reports
        self.decision = Decision(self.gamma, reason=reason)

    def _start_probe(self, target: int) -> None:
        if self.pacing.eager:
            self.ema = (self._fall_at[self.index] + self._rise_above[target]) / 2
        elif self.ema < 0:
            self.ema = float(self.rungs[target] - 1)

    def _settle(self, target: int) -> None:
        """Judge the last climb: undone while on trial, or lasting."""
        if self._climb is None:
            return
        origin, since = self._climb
        first_wait = self.pacing.first_wait
        if self.reports - since > self.pacing.trial:
            self._waits[origin] = max(self._waits[origin] // 2, first_wait)
            self._climb = None
        elif target <= origin:
            self._waits[origin] = min(2 * self._waits[origin], self.pacing.backoff)
            self._backed_off = True
            self._close(origin)
            self._climb = None

    def _close(self, index: int) -> None:
        """Do not leave this rung upwards before its wait is over."""
        self._closed_until[index] = max(self._closed_until[index], self.reports + self._waits[index])
        self._open_at = max(self._open_at, self._closed_until[index])
