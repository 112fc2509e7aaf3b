"""What an acceptance rule is: how much of the drafter's probability of a token it lets stand.

The exact rule lets q(x) stand up to p(x). A rule that is not exact names another bound, its *mass* m(x): a draft token
x, drawn from q, stands with probability min(1, m(x) / q(x)). All else follows from m, in `engine/sampling/lossy.py`:
who stands, what is drawn after a rejection, and what the rule costs.

Shapes: B batch bucket, G = γ, V vocabulary, K parameters of the rule, T points of a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adaptive.contract import AcceptanceKind, Signal


@dataclass(frozen=True, slots=True)
class Case:
    """Draft tokens to be judged, and whatever a rule may look at.

    `p_BGV` is the distribution that the row's own token would come from, `q_BGV` the one that its draft token came
    from; both are one-hot on greedy rows, and q is where text was copied. `seen_BGV` is p, but on greedy rows the
    target at temperature 1: p alone would not say how near a miss was. `target_BGV` and `draft_BGV` are both models at
    temperature 1 without filters, on all rows, and `distance_BG` is the Jensen-Shannon distance between them; this and
    `draft_BGV` are there for rules that need the signal `js`.

    `exact_BG` says what the exact rule lets stand, `verified_B` how many draft tokens are there to be judged.
    `params_KB` are the rule's parameters, in the order of `AcceptanceKind.params`; the last plane says whether
    `table_BT` holds.
    """

    drafts_BG: Tensor
    verified_B: Tensor
    p_BGV: Tensor
    q_BGV: Tensor
    seen_BGV: Tensor
    target_BGV: Tensor
    exact_BG: Tensor
    params_KB: Tensor
    table_BT: Tensor
    draft_BGV: Tensor | None = None
    distance_BG: Tensor | None = None

    def param(self, place: int) -> Tensor:
        """One parameter of the rule, to be set against `[B, G, V]`: `[B, 1, 1]`."""
        return self.params_KB[place].unsqueeze(1).unsqueeze(2).to(self.p_BGV.dtype)


class Rule(Protocol):
    """An acceptance rule that is not exact. All that it computes is captured."""

    @property
    def kind(self) -> AcceptanceKind: ...

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals that the step has to compute for it; a drafter without them can not be judged by this rule."""

    def mass(self, case: Case) -> Tensor:
        """`[B, G, V]`, 0 or above, up to infinity for what stands in any case."""
