"""The policies of a configuration file: one section each, with the parameters of the class it builds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from adaptive.contract import AcceptanceKind, Policy
from adaptive.registry import get_policy
from policies import AdaSD, AdaSpec, EmaTiers, Fixed, FixedTree, Relaxed, Schedule
from policies.cost_published import PUBLISHED_COSTS

STRICT = ConfigDict(extra="forbid", frozen=True)


class NamedSection(BaseModel):
    """NAME or NAME:ARG as on the command line, plug-ins included; `policy: ema` is short for this."""

    model_config = STRICT
    kind: Literal["named"] = "named"
    spec: str

    def build(self, folder: Path) -> Policy:
        return get_policy(self.spec)


class FixedSection(BaseModel):
    """The same γ always."""

    model_config = STRICT
    kind: Literal["fixed"]
    gamma: NonNegativeInt

    def build(self, folder: Path) -> Policy:
        return Fixed(self.gamma)


class FixedTreeSection(BaseModel):
    """The same tree of draft tokens always."""

    model_config = STRICT
    kind: Literal["fixed-tree"]
    parents: list[int] = Field(description="The node that each hangs below, one of those before it; -1 is the root.")

    def build(self, folder: Path) -> Policy:
        return FixedTree(self.parents)


class ScheduleSection(BaseModel):
    """γ by batch size."""

    model_config = STRICT
    kind: Literal["schedule"]
    table: list[tuple[int, int, int]] | Path = Field(description="[[start, end, gamma], ...], or a JSON file of that.")
    hysteresis: NonNegativeInt = 0

    def build(self, folder: Path) -> Policy:
        if isinstance(self.table, Path):
            return Schedule.from_json(folder / self.table, self.hysteresis)
        return Schedule(self.table, self.hysteresis)


class EmaSection(BaseModel):
    """γ by an average of accepted tokens."""

    model_config = STRICT
    kind: Literal["ema"]
    tiers: dict[str, Any] | None = None
    start: NonNegativeInt = 2
    credit: bool = True
    dwell: NonNegativeInt = 3
    trial: PositiveInt = 16
    backoff: NonNegativeInt = 128
    eager: bool = True

    def build(self, folder: Path) -> Policy:
        return EmaTiers(**self.model_dump(exclude={"kind"}))


class EmaSglangSection(BaseModel):
    """SGLang's own rule."""

    model_config = STRICT
    kind: Literal["ema-sglang"]
    config: dict[str, Any] | Path | None = Field(default=None, description="SGLang's adaptive config, or a file of it.")
    initial_steps: NonNegativeInt | None = None

    def build(self, folder: Path) -> Policy:
        config = folder / self.config if isinstance(self.config, Path) else self.config
        return EmaTiers.sglang(config, self.initial_steps)


class AdaSpecSection(BaseModel):
    """Most expected tokens per second within the limits on the time per token."""

    model_config = STRICT
    kind: Literal["adaspec"]
    cost: str | None = Field(default=None, description="A profile of `adaptive profile`, or a published model's name.")
    max_gamma: PositiveInt = 8
    drafter: str | None = None
    calibrate: bool = True
    pooled: bool = False
    window: PositiveInt | None = 50
    hysteresis: NonNegativeFloat = 0.01
    error_bound: NonNegativeFloat = 0.5
    look_ahead: bool = True
    trim: bool = False

    def build(self, folder: Path) -> Policy:
        cost = self.cost if self.cost is None or self.cost in PUBLISHED_COSTS else folder / self.cost
        return AdaSpec(**self.model_dump(exclude={"kind", "cost"}), cost=cost)


class AdaSDSection(BaseModel):
    """Entropy stop, and acceptance by the distance between drafter and target (lossy unless `generation_only`)."""

    model_config = STRICT
    kind: Literal["adasd"]
    version: Literal["v1", "v2"] = "v2"
    generation_only: bool = False
    window: PositiveInt = 20
    drafter: str | None = None
    epsilon: NonNegativeFloat = 1e-4
    min_samples: PositiveInt = 8
    prior_weight: NonNegativeFloat = 4.0

    def build(self, folder: Path) -> Policy:
        return AdaSD(**self.model_dump(exclude={"kind"}))


class AcceptanceSection(BaseModel):
    """A rule that accepts draft tokens, around any policy (docs/acceptance.md); lossy ones take `allow_lossy`."""

    model_config = STRICT
    kind: AcceptanceKind
    params: dict[str, float] = Field(default_factory=dict, description="Those not named keep the rule's defaults.")

    def around(self, policy: Policy) -> Policy:
        return Relaxed(policy, self.kind, **self.params)


def _named(value: object) -> object:
    """`policy: ema` for `policy: {kind: named, spec: ema}`."""
    return {"kind": "named", "spec": value} if isinstance(value, str) else value


_Section = Annotated[
    NamedSection
    | FixedSection
    | FixedTreeSection
    | ScheduleSection
    | EmaSection
    | EmaSglangSection
    | AdaSpecSection
    | AdaSDSection,
    Field(discriminator="kind"),
]
PolicySection = Annotated[_Section, BeforeValidator(_named, json_schema_input_type=str | _Section)]
