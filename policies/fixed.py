"""The same γ at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from adaptive.contract import Capabilities, Decision, Needs, StepReport, StepView


class Fixed:
    """Draft `gamma` tokens at every step; 0 is plain decode.

    A γ the engine does not offer is refused rather than lowered: who asks for a constant wants that constant.

    >>> from adaptive.contract import Capabilities
    >>> policy = Fixed(3)
    >>> policy.bind(Capabilities(gammas=(0, 1, 3), batch_buckets=(1, 8))).gammas
    {1: (0, 3), 8: (0, 3)}
    """

    def __init__(self, gamma: int) -> None:
        if gamma < 0:
            raise ValueError(f"gamma={gamma!r} is not valid: give 0 (plain decode) or a positive depth")
        self.gamma = gamma
        self._decision = Decision(gamma, reason="fixed")

    def bind(self, caps: Capabilities) -> Needs:
        if self.gamma not in caps.gammas:
            raise ValueError(f"gamma={self.gamma} is not offered by this engine: choose one of {list(caps.gammas)}")
        return Needs.everywhere(caps, [self.gamma], self_paced=True)

    def decide(self, view: StepView) -> Decision:
        return self._decision

    def learn(self, view: StepView, decision: Decision, report: StepReport) -> None:
        """Nothing to learn."""

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def clone(self) -> Self:
        return type(self)(self.gamma)
