"""Synthetic acceptance: how many draft tokens stand is asked for, not found out, while the step keeps its real cost.

For trying out policies and measuring speed at a given acceptance. What is emitted is no longer what the model says.
Free of torch, so that settings can be checked before it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from adaptive.contract import FloatArray


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """The acceptance asked for, by exactly one of three; K is the engine's largest γ. ValueError names a bad value.

    `rates[k]` is the chance that draft token k *and all before it* stand, as vLLM has it: from 0 to 1, none above the
    one before. Tokens past the last rate never stand. `length` is the mean number of tokens a step at γ = K emits,
    the target's own included, from 1 to K + 1; `rate` the share of drafted tokens that stand at γ = K, as MAX has it:
    the same as a length of 1 + K · rate. Both give every token the same chance, once those before it stand; a smaller
    γ cuts the draft short and changes no token's chance.
    """

    rate: float | None = None
    rates: Sequence[float] | None = None
    length: float | None = None

    def __post_init__(self) -> None:
        settings = {"rate": self.rate, "rates": self.rates, "length": self.length}
        given = [name for name, value in settings.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"synthetic acceptance needs one of rate, rates, length; got {', '.join(given) or 'none'}")
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise ValueError(f"rate={self.rate!r} is not valid: give the share of drafted tokens to accept, 0 to 1")
        if self.length is not None and not self.length >= 1:
            raise ValueError(f"length={self.length!r} is not valid: give tokens per step, bonus included, from 1 on")
        if self.rates is not None:
            _check_rates(self.rates)
            object.__setattr__(self, "rates", tuple(self.rates))

    def __str__(self) -> str:
        if self.rates is not None:
            return f"rates {', '.join(f'{rate:g}' for rate in self.rates)}"
        return f"rate {self.rate:g}" if self.rate is not None else f"length {self.length:g}"

    @property
    def notice(self) -> str:
        """What has to stand beside every output made this way."""
        return f"synthetic acceptance: outputs are meaningless ({self})"

    def unconditional(self, max_gamma: int) -> FloatArray:
        """Per draft position, the chance that this token and all before it stand `[K]`.

        ValueError when no drafts of at most `max_gamma` tokens can do as asked.
        """
        if max_gamma < 1:
            raise ValueError("synthetic acceptance needs a drafter: nothing is drafted here")
        if self.rates is not None:
            beyond = len(self.rates) - max_gamma
            if beyond > 0:
                raise ValueError(f"{len(self.rates)} rates for {max_gamma} draft tokens: leave out the last {beyond}")
            return np.array([*self.rates, *[0.0] * -beyond])
        if self.length is None:
            assert self.rate is not None, "exactly one of the three is given"
            return _geometric(self.rate * max_gamma, max_gamma)
        if self.length > max_gamma + 1:
            raise ValueError(f"length={self.length!r} is out of reach: steps emit 1 to {max_gamma + 1} tokens here")
        return _geometric(self.length - 1, max_gamma)

    def conditional(self, max_gamma: int) -> FloatArray:
        """Per draft position, the chance that this token stands once all before it do `[K]`."""
        rates = self.unconditional(max_gamma)
        before = np.concatenate([[1.0], rates[:-1]])
        chances: FloatArray = np.divide(rates, before, out=np.zeros_like(rates), where=before > 0)
        return chances


def _check_rates(rates: Sequence[float]) -> None:
    valid = len(rates) > 0 and all(0 <= rate <= 1 for rate in rates)
    if not valid or any(after > before for before, after in pairwise(rates)):
        raise ValueError(
            f"rates={[*rates]!r} are not valid: give at least one, each from 0 to 1 and none above the one before "
            "(the chance that a draft token and all before it stand)"
        )


def _geometric(accepted: float, max_gamma: int) -> FloatArray:
    """r, r², ..., r^K with the sum `accepted`."""
    from scipy.optimize import brentq  # takes a while to import, and few engines need it

    power_K = np.arange(1, max_gamma + 1)
    chance: float = brentq(lambda r: float((r**power_K).sum()) - accepted, 0.0, 1.0, xtol=1e-14)
    return np.power(chance, power_K, dtype=np.float64)
