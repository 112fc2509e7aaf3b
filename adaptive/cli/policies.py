"""`adaptive policies`: what `--policy` accepts."""

from __future__ import annotations

from adaptive.cli.options import Debug, Json
from adaptive.cli.render import print_json, stdout, table
from adaptive.registry import list_policies


def policies(json: Json = False, debug: Debug = False) -> None:
    """List the policies and how to write their arguments."""
    entries = list_policies()
    if json:
        print_json([{"name": one.name, "usage": one.usage, "description": one.description} for one in entries])
    else:
        rows = [[one.usage, one.description] for one in entries]
        stdout().print(table("Policies", ["write", "what it does"], rows, left=2))
