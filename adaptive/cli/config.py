"""`adaptive config`: is a configuration file right, what does it come to, what may it hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from adaptive.cli.errors import usage
from adaptive.cli.options import Debug, Json
from adaptive.cli.render import print_json

if TYPE_CHECKING:
    from adaptive.config import Config

app = typer.Typer(help="Check and explain configuration files.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A .yaml, .yml or .toml file.")]


@app.command()
def check(file: File, debug: Debug = False) -> None:
    """Say what is wrong with a file, key by key, or that nothing is."""
    config = _load(file)
    print(f"{file} is right: model {config.model or 'not set'}, drafter {config.drafter.kind}, policy {config.label}")


@app.command()
def show(file: File, json: Json = False, debug: Debug = False) -> None:
    """Print what a file comes to, with defaults and environment variables filled in; what is not set is left out."""
    content = _load(file).model_dump(mode="json", exclude_none=True)
    if json:
        print_json(content, indent=2)
    else:
        print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), end="")


@app.command()
def schema(debug: Debug = False) -> None:
    """Print the JSON schema of configuration files, for editors."""
    from adaptive.config import Config

    print_json(Config.model_json_schema(), indent=2)


def _load(path: Path) -> Config:
    """The file, its policy built once to see that it can be."""
    from adaptive.config import Config

    with usage():
        config = Config.load(path)
        config.build_policy()
    return config
