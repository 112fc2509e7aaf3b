"""The machine a benchmark ran on, and how much of it others used meanwhile."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Self

import psutil

FOREIGN_CPU_LIMIT = 0.10
"""Above this share of the machine used by other processes, a timing says more about them than about us."""

SHORTEST_READABLE_S = 1.0
"""Processor clocks tick every 10 ms or so: a share measured over less time than this is mostly rounding."""

_PACKAGES = ("adaptive-speculation", "torch", "numpy", "transformers")


def machine_facts(engine: Mapping[str, object]) -> dict[str, object]:
    """JSON-ready facts; `engine` is the engine's own description of model, dtype and kernels."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "engine": dict(engine),
    }


class CpuMeter:
    """Context manager: the share of all cores' time that processes other than this one used inside it.

    `also` are ids of processes that count as own: what they use is part of what is measured. `seconds` is the wall
    time, `foreign` from 0 to 1. Spans below `SHORTEST_READABLE_S` are rough.
    """

    seconds = 0.0
    foreign = 0.0

    def __init__(self, *also: int) -> None:
        self._processes = [psutil.Process(), *map(psutil.Process, also)]

    def __enter__(self) -> Self:
        self._start = perf_counter()
        self._busy, self._own = _busy_seconds(), self._own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = perf_counter() - self._start
        foreign = (_busy_seconds() - self._busy) - (self._own_seconds() - self._own)
        available = self.seconds * (psutil.cpu_count() or 1)
        self.foreign = min(1.0, max(0.0, foreign / available)) if available else 0.0

    def _own_seconds(self) -> float:
        return sum(_seconds_of(process) for process in self._processes)


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    # Linux counts guest time inside user time, so it is not added again.
    return float(sum(times.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal")))


def _seconds_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
