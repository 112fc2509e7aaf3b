"""Cost models that others published: for trying things out without the machine. Labelled, never mistaken for ours."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "coefficients of TurboSpec's vLLM branch (arXiv 2406.14066), not measured here"
OVERHEAD = 0.05  # of the target's pass
NGRAM_DRAFT = 0.04


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """TurboSpec's linear form, in milliseconds per unit; implements `adaptive.contract.CostModel`.

    The target's pass takes `kv`·context + `token`·packed tokens + `row`·batch + `fixed`, and `speculating` more where
    a step drafts; 5 % overhead comes on top. Drafting takes `draft_kv`·context + `draft_step`·γ + `draft_row`·batch +
    `draft_fixed`, or without those (n-gram) 4 % of the target's pass.
    """

    label: str
    kv: float
    token: float
    row: float
    fixed: float
    speculating: float = 0.0
    draft_kv: float = 0.0
    draft_step: float = 0.0
    draft_row: float = 0.0
    draft_fixed: float = 0.0

    def draft_s(self, batch: int, gamma: int, context_tokens: int) -> float:
        """Seconds to draft γ tokens per row."""
        if gamma == 0:
            return 0.0
        if self.draft_fixed == 0.0:
            return NGRAM_DRAFT * self._target_s(batch, batch * (gamma + 1), context_tokens)
        per_step = self.draft_step * gamma + self.draft_row * batch
        return (self.draft_kv * context_tokens + per_step + self.draft_fixed) / 1e3

    def verify_s(self, batch: int, verify_tokens: int, context_tokens: int) -> float:
        """Seconds of the target's pass and the overhead."""
        return (1 + OVERHEAD) * self._target_s(batch, verify_tokens, context_tokens)

    def _target_s(self, batch: int, tokens: int, context: int) -> float:
        drafted = self.speculating if tokens > batch else 0.0
        return (self.kv * context + self.token * tokens + self.row * batch + drafted + self.fixed) / 1e3


def _llama_8b(label: str, **draft: float) -> PublishedCost:
    return PublishedCost(label, kv=4.859e-5, token=1.8438e-2, row=-4.331e-2, fixed=6.9387, **draft)


PUBLISHED_COSTS = {
    "llama-8b-h100-ngram": _llama_8b(f"Llama 8B on an H100, n-gram drafter: {SOURCE}"),
    "llama-8b-h100-eagle": _llama_8b(
        f"Llama 8B on an H100, EAGLE drafter: {SOURCE}",
        draft_kv=2.897e-6,
        draft_step=0.45218,
        draft_row=5.528e-3,
        draft_fixed=0.44711,
    ),
    "llama-70b-h100-tp4-ngram": PublishedCost(
        f"Llama 70B on four H100, n-gram drafter: {SOURCE}",
        kv=6.2437e-5,
        token=6.4022e-2,
        row=-3.9738e-2,
        fixed=18.34535,
        speculating=-0.11229,
    ),
}
"""By name; each `label` says where the numbers come from."""


def published_cost(name: str) -> PublishedCost:
    """The published model of that name. ValueError for an unknown one.

    >>> published_cost("llama-8b-h100-ngram").label[:21]
    'Llama 8B on an H100, '
    """
    if name not in PUBLISHED_COSTS:
        raise ValueError(f"published cost model {name!r} is not known: choose from {', '.join(PUBLISHED_COSTS)}")
    return PUBLISHED_COSTS[name]
