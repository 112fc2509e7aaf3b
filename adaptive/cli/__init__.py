"""The command line: `adaptive demo | generate | bench | profile | train | models | policies | config`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli import bench, config, demo, generate, models, policies, profile, train
from adaptive.cli.errors import fail
from adaptive.cli.options import debug_wanted
from adaptive.cli.session import check_installation

DISTRIBUTION = "adaptive-speculation"

app = typer.Typer(
    name="adaptive",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    """Runs before anything else is read."""
    if wanted:
        print(f"adaptive {version_of(DISTRIBUTION)}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
]


@app.callback()
def root(version: Version = False) -> None:
    """The control plane for speculative decoding: how many tokens to draft, decided while the engine runs."""


app.command()(demo.demo)
app.command()(generate.generate)
app.command()(bench.bench)
app.command()(profile.profile)
app.command()(train.train)
app.add_typer(models.app, name="models")
app.command()(policies.policies)
app.add_typer(config.app, name="config")


def main(args: Sequence[str] | None = None) -> None:
    """Exit code 0, 1 for a run-time error (one line, a traceback with `--debug`), 2 for a usage error."""
    try:
        check_installation(Path(__file__).parents[1])
        app(args=args, prog_name="adaptive")
    except Exception as error:
        fail(error, debug=debug_wanted())
