"""The options that ask for an acceptance rate instead of finding it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.errors import UsageError, usage
from adaptive.lists import numbers

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

RATE, RATES, LENGTH = (f"--synthetic-acceptance-{name}" for name in ("rate", "rates", "length"))
PANEL = "Synthetic acceptance (one of them; outputs are meaningless)"

Rate = Annotated[
    float | None,
    typer.Option(RATE, help="Share of drafted tokens to accept at the largest γ, 0 to 1.", rich_help_panel=PANEL),
]
Rates = Annotated[
    str | None,
    typer.Option(
        RATES,
        metavar="R1,R2,...",
        help="Per position, the chance that this token and all before it stand.",
        rich_help_panel=PANEL,
    ),
]
Length = Annotated[
    float | None,
    typer.Option(LENGTH, help="Tokens per step at the largest γ, the bonus included.", rich_help_panel=PANEL),
]


def synthetic_acceptance(
    rate: float | None, rates: str | None, length: float | None, *, drafter: str | None, max_gamma: int
) -> SyntheticAcceptance | None:
    """What the three options ask for, None where none is given. Raises UsageError."""
    values = {RATE: rate, RATES: rates, LENGTH: length}
    given = [option for option, value in values.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other: give one")
    from engine.sampling.synthetic import SyntheticAcceptance

    with usage():
        shares = None if rates is None else numbers(RATES, rates)
    with usage(given[0]):
        synthetic = SyntheticAcceptance(rate, shares, length)
        synthetic.conditional(max_gamma if drafter else 0)
    return synthetic
