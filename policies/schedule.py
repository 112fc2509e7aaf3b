"""A table from batch size to γ, in the JSON form of vLLM's `num_speculative_tokens_per_batch_size`."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView

VLLM_KEY = "num_speculative_tokens_per_batch_size"


class Schedule:
    """γ by the number of decoding requests: `[[start, end, gamma], ...]`, both ends inclusive.

    The first range starts at 1; a gap, and everything past the last range, keeps the γ of the range before it.
    `hysteresis` is how many requests past an edge the batch must grow or shrink before a range is left, so that a
    load hovering at an edge does not flap.

    >>> policy = Schedule([[1, 4, 5], [5, 16, 2], [17, 64, 0]], hysteresis=1)
    >>> [policy.gamma_at(size) for size in (1, 4, 5, 16, 17, 500)]
    [5, 5, 2, 2, 0, 0]
    """

    def __init__(self, table: Sequence[Sequence[int]], hysteresis: int = 0) -> None:
        if hysteresis < 0:
            raise ValueError(f"hysteresis={hysteresis!r} is not valid: give a number of requests, 0 or above")
        self.table = _checked(table)
        self.hysteresis = hysteresis
        self._starts = [start for start, _, _ in self.table]
        self._decisions = [Decision(gamma, reason=f"batch>={start}") for start, _, gamma in self.table]
        self._current: int | None = None

    @classmethod
    def from_json(cls, source: str | Path, hysteresis: int = 0) -> Self:
        """Read a table from JSON text or a JSON file: the bare list, or a vLLM speculative config that holds one."""
        inline = isinstance(source, str) and source.lstrip()[:1] in ("[", "{")
        text = str(source) if inline else Path(source).read_text(encoding="utf-8")
        try:
            table = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"schedule {str(source)!r} is not valid JSON: {error}") from error
        if isinstance(table, dict):
            if VLLM_KEY not in table:
                raise ValueError(f"schedule {str(source)!r} has no key {VLLM_KEY!r}; its keys are {list(table)}")
            table = table[VLLM_KEY]
        return cls(table, hysteresis)

    def gamma_at(self, num_decode: int) -> int:
        """The table's own answer, without hysteresis."""
        return self.table[self._range_of(num_decode)][2]

    def bind(self, caps: Capabilities) -> Needs:
        missing = sorted({gamma for _, _, gamma in self.table} - set(caps.gammas))
        if missing:
            raise ValueError(f"gamma={missing} of the schedule is not offered by this engine: use {list(caps.gammas)}")
        self._current = None
        gammas: dict[int, tuple[int, ...]] = {}
        smallest = 1
        for bucket in caps.batch_buckets:
            low = self._range_of(smallest - self.hysteresis)
            high = self._range_of(bucket + self.hysteresis)
            gammas[bucket] = tuple(sorted({0} | {gamma for _, _, gamma in self.table[low : high + 1]}))
            smallest = bucket + 1
        return Needs(gammas, self_paced=self.hysteresis > 0)

    def decide(self, view: StepView) -> Decision:
        size = view.num_decode
        target = self._range_of(size)
        if self._current is None or self._left(self._current, size):
            self._current = target
        return self._decisions[self._current]

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """Nothing to learn."""

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> Self:
        return type(self)(self.table, self.hysteresis)

    def _range_of(self, size: int) -> int:
        return max(bisect_right(self._starts, size) - 1, 0)

    def _left(self, index: int, size: int) -> bool:
        below = size < self._starts[index] - self.hysteresis
        above = index + 1 < len(self._starts) and size >= self._starts[index + 1] + self.hysteresis
        return below or above


def _checked(table: object) -> tuple[tuple[int, int, int], ...]:
    if not isinstance(table, list | tuple) or not table:
        raise ValueError(f"schedule {table!r} is not valid: give a list of at least one [start, end, gamma]")
    ranges: list[tuple[int, int, int]] = []
    for entry in table:
        if not isinstance(entry, list | tuple) or len(entry) != 3 or not all(type(number) is int for number in entry):
            raise ValueError(f"schedule entry {entry!r} is not valid: give three integers [start, end, gamma]")
        start, end, gamma = entry
        previous_end = ranges[-1][1] if ranges else 0
        for wrong, problem in (
            (not ranges and start != 1, "must start at 1: it is the first range"),
            (start <= previous_end, f"must start above {previous_end}, the end of the range before it"),
            (end < start, "ends before it starts"),
            (gamma < 0, "has a negative gamma: 0 turns drafting off"),
        ):
            if wrong:
                raise ValueError(f"schedule entry {list(entry)} {problem}")
        ranges.append((start, end, gamma))
    return tuple(ranges)
