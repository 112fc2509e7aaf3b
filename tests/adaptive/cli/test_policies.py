from __future__ import annotations

import json

from adaptive.cli.session import split_specs
from tests.adaptive.cli.conftest import Cli


def test_policies_are_listed(cli: Cli) -> None:
    assert "fixed:K" in cli("policies").out
    entries = json.loads(cli("policies", "--json").out)
    assert {"fixed", "ema", "schedule"} <= {entry["name"] for entry in entries}
    assert all(entry["description"] for entry in entries)


def test_commas_in_brackets_do_not_split() -> None:
    assert split_specs(" fixed:0 , schedule:[[1,4,5],[5,9,2]],ema ,") == [
        "fixed:0",
        "schedule:[[1,4,5],[5,9,2]]",
        "ema",
    ]
