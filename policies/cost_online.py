"""A cost model made on the way, where nobody has profiled the machine: fitted to the steps as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from policies.cost import StepCost
from policies.cost_fit import StepSample, fit_cost

KEPT = 512
FIRST_FIT = 32


class OnlineCost:
    """Collects timed steps and fits them at 32, 64, 128, 256 and 512 of them, then every 512.

    A fit takes milliseconds, so they are few. It needs verification passes of two widths per row, one of them with
    drafts: before that `model` is None.
    """

    def __init__(self, batches: Sequence[int] = (), contexts: Sequence[int] = ()) -> None:
        self.model: StepCost | None = None
        self._batches = tuple(batches)
        self._contexts = tuple(contexts)
        self._samples: deque[StepSample] = deque(maxlen=KEPT)
        self._count = 0
        self._next = FIRST_FIT
        # The newest sample that drafted, and the newest whose shape was not that of the one before.
        self._drafted_at = self._changed_at = -KEPT
        self._shape = (False, 0.0)

    def add(self, sample: StepSample) -> bool:
        """Keep a sample; True where this made a new `model`."""
        shape = sample.gamma > 0, sample.tokens / sample.batch
        self._samples.append(sample)
        self._count += 1
        if sample.gamma:
            self._drafted_at = self._count
        if shape != self._shape:
            self._shape = shape
            self._changed_at = self._count if self._count > 1 else -KEPT
        if self._count < self._next or not self._varied():
            return False
        self._next = self._count + min(self._count, KEPT)
        label = "fitted while running"
        self.model = fit_cost(self._samples, batches=self._batches, contexts=self._contexts, label=label)
        return True

    def _varied(self) -> bool:
        """Whether the samples kept are of two shapes or more, and some drafted."""
        return self._count - self._drafted_at < KEPT and self._count - self._changed_at < KEPT - 1
