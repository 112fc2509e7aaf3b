from __future__ import annotations

import json

from tests.adaptive.cli.conftest import Cli


def test_policies_are_listed(cli: Cli) -> None:
    assert "fixed:K" in cli("policies").out
    entries = json.loads(cli("policies", "--json").out)
    assert {"fixed", "ema", "schedule"} <= {entry["name"] for entry in entries}
    assert all(entry["description"] for entry in entries)
