"""Who takes part in a benchmark of policies: each on each drafter, with so many requests side by side.

A policy that never drafts is the same whatever could draft, so it runs once, on an engine without a drafter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adaptive.cli.configured import Configured
from adaptive.cli.errors import UsageError, usage
from adaptive.cli.options import DRAFTERS, EngineOptions
from adaptive.cli.render import stderr
from adaptive.cli.session import Settled, TextEngine, check_policies
from adaptive.contract import Capabilities, Policy
from adaptive.lists import whole_numbers, words

if TYPE_CHECKING:
    from adaptive.benchmark import Arm

NO_DRAFTER = "none"


@dataclass(frozen=True, slots=True)
class Lineup:
    """The engines, in order, and how many requests side by side, one number after the other.

    With `several` drafters the first engine has none.
    """

    options: tuple[EngineOptions, ...]
    batches: tuple[int, ...]
    several: bool = False

    def place(self, policies: Mapping[str, Policy], settled: Settled, *, allow_lossy: bool) -> dict[int, list[str]]:
        """The policies that run on each engine, by its place. UsageError for one that can not work on any.

        One that works on some is left out of the others, which is said on stderr: Medusa has as many guesses as heads.
        """
        caps, places = settled.capabilities, range(len(self.options))
        idle = [spec for spec, policy in policies.items() if self.several and never_drafts(policy, caps[1])]
        drafting = [spec for spec in policies if spec not in idle]
        placed = {place: idle if self.several and place == 0 else drafting for place in places}
        refused: dict[str, list[UsageError]] = {}
        for place, specs in placed.items():
            option = f"--drafters {self.options[place].drafter} --policies" if self.several else "--policies"
            fit = []
            for spec in specs:
                try:
                    check_policies(caps[place], {spec: policies[spec]}, option, allow_lossy=allow_lossy)
                    fit.append(spec)
                except UsageError as refusal:
                    refused.setdefault(spec, []).append(refusal)
            placed[place] = fit
        for spec, errors in refused.items():
            if not any(spec in fit for fit in placed.values()):
                raise errors[0]
            for error in errors:
                stderr().print(f"left out: {error}", markup=False)
        return placed

    def arms(
        self,
        engines: Sequence[TextEngine],
        policies: Mapping[str, Policy],
        placed: Mapping[int, Sequence[str]],
        batch: int,
        setup: Configured,
    ) -> list[Arm]:
        """With `batch` requests side by side."""
        from adaptive.benchmark import PolicyArm

        return [
            PolicyArm(
                spec,
                policies[spec],
                engines[place],
                self.options[place].drafter,
                setup.slo,
                setup.allow_lossy,
                batch,
                self.several and self.options[place].drafter is not None,
            )
            for place, specs in placed.items()
            for spec in specs
        ]


def lineup(wanted: EngineOptions, drafters: Sequence[str], batches: str | None) -> Lineup:
    """`drafters` are NAME or NAME=DRAFT_MODEL, commas between them; none: the one of `wanted`. Raises UsageError."""
    with usage():
        sizes = (wanted.max_batch,) if batches is None else whole_numbers("--batches", batches, least=1)
    widest = replace(wanted, max_batch=sizes[-1])
    if not drafters:
        return Lineup((widest,), sizes)
    chosen = [_drafter(word, widest) for word in words(drafters)]
    names = [one.drafter for one in chosen]
    if not names:
        raise UsageError(f"--drafters: name at least one of {', '.join(DRAFTERS[:-1])}")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--drafters: {name!r} is named twice")
    plain = replace(widest, drafter=None, draft_model=None, synthetic=None)
    return Lineup((plain, *chosen), sizes, several=True)


def _drafter(word: str, wanted: EngineOptions) -> EngineOptions:
    name, _, draft_model = word.partition("=")
    if name == NO_DRAFTER:
        raise UsageError(
            f"--drafters: leave {NO_DRAFTER!r} out, since policies that never draft run without one anyway"
        )
    if name not in DRAFTERS:
        raise UsageError(f"--drafters: {name!r} is not known; choose from {', '.join(DRAFTERS[:-1])}")
    return replace(wanted, drafter=name, draft_model=draft_model or None)


def never_drafts(policy: Policy, caps: Capabilities) -> bool:
    """Whether all it can reach is plain decoding. One that can not work at all is somebody else's to report."""
    try:
        needs = policy.clone().bind(caps)
    except ValueError:
        return False
    return not needs.trees and all(gamma == 0 for gammas in needs.gammas.values() for gamma in gammas)
