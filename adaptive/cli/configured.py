"""The option `--config FILE`: a file's settings become the defaults of the other options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.errors import UsageError, usage
from adaptive.cli.session import parse_policies
from adaptive.contract import Policy
from adaptive.slo import NO_LIMITS, Slo

WORD = "config"
"""What stands for the file's policy where policies are named."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What a configuration file holds that no option does; `label` is how its policy is shown."""

    policy: Policy | None = None
    label: str = WORD
    slo: Slo = NO_LIMITS
    allow_lossy: bool = False

    def parse(self, specs: Iterable[str], option: str = "--policies") -> dict[str, Policy]:
        """Names to policies, `config` being the file's. Raises UsageError."""
        specs = list(specs)
        if self.policy is None:
            if WORD in specs:
                raise UsageError(f"{option} {WORD}: takes --config FILE, and a policy in that file")
            return parse_policies(specs, option)
        return {
            self.label if spec == WORD else spec: policy
            for spec, policy in parse_policies(specs, option, {WORD: self.policy}).items()
        }

    def parse_one(self, spec: str, option: str = "--policy") -> tuple[str, Policy]:
        """One policy and how it is shown. Raises UsageError."""
        chosen, *others = self.parse([spec], option).items()
        if others:
            raise UsageError(f"{option}: takes one policy, got {1 + len(others)}; `adaptive bench` compares several")
        return chosen


def configured(ctx: typer.Context, *, allow_lossy: bool = False) -> Configured:
    """What `--config` brought, or the defaults without it; `allow_lossy` adds consent that an option gave."""
    setup = ctx.obj if isinstance(ctx.obj, Configured) else Configured()
    return replace(setup, allow_lossy=setup.allow_lossy or allow_lossy)


def _use(ctx: typer.Context, path: Path | None) -> Path | None:
    """Runs before the other options are read."""
    if path is None:
        return None
    from adaptive.config import Config

    with usage("--config"):
        config = Config.load(path)
        policy = config.build_policy()
    ctx.default_map = config.options() | ({} if policy is None else {"policy": WORD, "policies": [WORD]})
    ctx.obj = Configured(policy, config.label, config.slo.build(), config.allow_lossy)
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_use,
        is_eager=True,
        help="YAML or TOML with model, drafter, policy, SLO; options given besides win.",
        show_default=False,
    ),
]
