"""The control plane for speculative decoding: how many tokens to draft, decided while the engine runs.

Names are loaded when they are first used (PEP 562), so that `import adaptive` costs nothing and a policy may be
imported before the package that will run it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptive.check import check_engine, check_policy
    from adaptive.contract import Capabilities, Decision, Engine, Needs, Policy, StepReport, StepView
    from adaptive.controller import AdaptiveController
    from adaptive.guard import GuardConfig
    from adaptive.registry import get_policy, list_policies
    from adaptive.requests import Completion, Output, Request, Sampling
    from adaptive.stats import ControllerStats

__all__ = [
    "AdaptiveController",
    "Capabilities",
    "Completion",
    "ControllerStats",
    "Decision",
    "Engine",
    "GuardConfig",
    "Needs",
    "Output",
    "Policy",
    "Request",
    "Sampling",
    "StepReport",
    "StepView",
    "check_engine",
    "check_policy",
    "get_policy",
    "list_policies",
]

_HOMES = {
    "adaptive.check": ("check_engine", "check_policy"),
    "adaptive.contract": ("Capabilities", "Decision", "Engine", "Needs", "Policy", "StepReport", "StepView"),
    "adaptive.controller": ("AdaptiveController",),
    "adaptive.guard": ("GuardConfig",),
    "adaptive.registry": ("get_policy", "list_policies"),
    "adaptive.requests": ("Completion", "Output", "Request", "Sampling"),
    "adaptive.stats": ("ControllerStats",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
