"""When to draft although it is not expected to pay: nothing is learnt without drafting, and text changes."""

from __future__ import annotations

FIRST_WAIT = 16
LONGEST_WAIT = 256
LASTED = 16  # steps of drafting on merit after which the last probe has paid


class Probes:
    """Waits, in steps at γ = 0, that double with each probe until drafting has lasted or requests have left.

    >>> probes = Probes()
    >>> [step for step in range(120) if probes.due(step)]
    [0, 16, 48, 112]
    """

    def __init__(self) -> None:
        self._wait = FIRST_WAIT
        self._next = 0
        self._drafting = 0

    def due(self, step: int) -> bool:
        """Asked at a step that would not draft; True makes it one that does."""
        if self._drafting:
            self._drafting = 0
            self._next = step + self._wait
        if step < self._next:
            return False
        self._next = step + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        return True

    def drafts(self) -> None:
        """A step drafts because it is expected to pay."""
        self._drafting += 1
        if self._drafting == LASTED:
            self._wait = FIRST_WAIT

    def ease(self, share: float) -> None:
        """This share of the requests has left: what is not expected to pay may pay for others."""
        shorter = max(int(self._wait * (1 - share)), FIRST_WAIT)
        self._next -= self._wait - shorter
        self._wait = shorter
