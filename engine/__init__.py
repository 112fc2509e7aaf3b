"""The bundled engine: a static-shape decode step for CPU and GPU, continuous batching, drafters, verification.

Names are imported on first use, so that listing or fetching models does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.core import LLMEngine
    from engine.llm import load_engine, load_plans
    from engine.plan import EnginePlan, plan_engine
    from engine.sampling.synthetic import SyntheticAcceptance

__all__ = [
    "EngineConfig",
    "EnginePlan",
    "LLMEngine",
    "SyntheticAcceptance",
    "load_engine",
    "load_plans",
    "plan_engine",
]

_HOMES = {
    "EngineConfig": "engine.config",
    "EnginePlan": "engine.plan",
    "LLMEngine": "engine.core",
    "SyntheticAcceptance": "engine.sampling.synthetic",
    "load_engine": "engine.llm",
    "load_plans": "engine.llm",
    "plan_engine": "engine.plan",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
