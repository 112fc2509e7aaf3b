from __future__ import annotations

import subprocess
import sys

import pytest

import adaptive
from tests.rules.project import ROOT


def run_fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import policies",
        "import adaptive, policies",
        "from policies import EmaTiers",
        "from adaptive import AdaptiveController, check_engine, check_policy",
        "import adaptive.registry",
    ],
)
def test_import_order_does_not_matter(first: str) -> None:
    run_fresh(f"{first}\nimport policies, adaptive\nadaptive.AdaptiveController, policies.EmaTiers")


def test_importing_adaptive_loads_nothing_heavy() -> None:
    loaded = run_fresh("import sys, adaptive; print(*{'numpy', 'torch', 'pydantic', 'policies'} & set(sys.modules))")
    assert loaded == ""


def test_the_core_runs_without_torch_and_pydantic() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pydantic'] = None\n"
        "from adaptive import AdaptiveController, Sampling\n"
        "from adaptive.check import ToyEngine\n"
        "print(len(AdaptiveController(ToyEngine(), 'ema').generate([1], Sampling(max_tokens=9))[0].tokens))"
    )
    assert run_fresh(code) == "9"


def test_every_public_name_is_there() -> None:
    for name in adaptive.__all__:
        assert getattr(adaptive, name).__name__ == name
        assert name in dir(adaptive)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        adaptive.Nothing  # noqa: B018
