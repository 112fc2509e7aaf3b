"""Which γ are tried at which batch size, in SGLang's config form, and the thresholds between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

Config = Mapping[str, Any]
"""SGLang's adaptive config: `{"1": {"candidate_steps": [1, 3]}, "8": {...}, "ema_alpha": 0.2}`, one ladder per lower
bound of batch size; keys that are not numbers are defaults for all ladders."""

# Deep where verifying is cheap (few rows), shallow where it is not; 0 everywhere, so that a useless drafter can be
# turned off. One more token to verify costs about 5 % of a step at batch 1 and 20-30 % at batch 8 to 16 (measured on a
# CPU), so at batch 1 a rung pays for itself when a quarter of it is accepted. Simulated on those costs with copied and
# free text at batch 1, shares of .5 and .25 lay within 2 % of the best pair, an α from .15 to .25 made no difference,
# and judging every report was 2-4 % better on copied text than every third (`dwell` keeps switches apart).
DEFAULT_TIERS: Config = {
    "1": {"candidate_steps": [0, 1, 2, 3, 5, 7, 10, 16], "rise_share": 0.5, "fall_share": 0.25},
    "8": {"candidate_steps": [0, 1, 2, 3, 5], "rise_share": 0.6, "fall_share": 0.4},
    "32": {"candidate_steps": [0, 1, 2, 3], "rise_share": 0.7, "fall_share": 0.5},
    "64": {"candidate_steps": [0, 1, 2], "rise_share": 0.7, "fall_share": 0.5},
    "ema_alpha": 0.2,
    "update_interval": 1,
    "warmup_batches": 1,
}

SGLANG_TIERS: Config = {
    "1": {"candidate_steps": [1, 3, 5, 7], "down_hysteresis": -0.25},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
}


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs (γ, ascending) of one range of batch sizes and how to move on them; SGLang's names and defaults.

    `rise_share` and `fall_share` replace SGLang's thresholds (half a token under the rung) by a share of the rung:
    leave γ upwards above `rise_share · γ`, return to γ at or below `fall_share · γ` (to 0 at half of `fall_share`).
    """

    candidate_steps: tuple[int, ...]
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0
    rise_share: float | None = None
    fall_share: float | None = None

    @classmethod
    def parse(cls, name: str, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> Ladder:
        """From one slot of an SGLang config and the config's global defaults; unknown keys are ignored."""
        merged = {**defaults, **entry}
        options = {key: merged[key] for key in OPTIONS if key in merged}
        for key, value in options.items():
            if not isinstance(value, int | float):
                raise ValueError(f"batch size {name}: {key}={value!r} must be a number")
        if options.get("update_interval") == 0:
            raise ValueError(f"batch size {name}: update_interval=0 never judges: give 1 or more reports")
        return cls(candidates(name, entry.get("candidate_steps")), **options)

    def rise_above(self) -> list[float]:
        """Per rung: the average above which it is left upwards."""
        if self.rise_share is not None:
            return [self.rise_share * gamma for gamma in self.candidate_steps]
        return [gamma - 0.5 + self.up_hysteresis for gamma in self.candidate_steps]

    def fall_at(self) -> list[float]:
        """Per rung: the average at or below which the rung above it falls to it."""
        if self.fall_share is not None:
            return [self.fall_share * (gamma or 0.5) for gamma in self.candidate_steps]
        return [(0.5 if gamma == 0 else gamma - 0.5) + self.down_hysteresis for gamma in self.candidate_steps]


def candidates(name: str, steps: object) -> tuple[int, ...]:
    """Check and order the γ of one slot."""
    if not isinstance(steps, Sequence) or not steps or not all(isinstance(step, int) and step >= 0 for step in steps):
        raise ValueError(f"batch size {name}: candidate_steps must be a list of integers, 0 or above, got {steps!r}")
    return tuple(sorted({int(step) for step in steps}))


OPTIONS = tuple(option.name for option in fields(Ladder) if option.name != "candidate_steps")


def parse_tiers(config: Config) -> dict[int, Ladder]:
    """The ladders of a config by lower bound of batch size, ascending. ValueError names what is wrong with it."""
    if not isinstance(config, Mapping):
        raise ValueError(f"tiers {config!r} are not valid: give an object from batch sizes to ladders")
    ladders: dict[int, Ladder] = {}
    for key, entry in config.items():
        if key.isdigit():
            if not isinstance(entry, Mapping):
                raise ValueError(f"batch size {key}: {entry!r} must be an object with candidate_steps")
            ladders[int(key)] = Ladder.parse(key, entry, config)
    if not ladders:
        raise ValueError(
            f"tiers have no batch size among their keys {list(config)}: "
            'give at least one, such as {"1": {"candidate_steps": [1, 3, 7]}}'
        )
    return dict(sorted(ladders.items()))
