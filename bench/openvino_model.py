"""The model in OpenVINO's form: written as a Hugging Face folder, exported from there, kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from engine.models.cache import cache_dir
from engine.models.export import export_huggingface
from engine.models.source import open_model

EXPORTER = ("export", "openvino", "--task", "text-generation-with-past", "--weight-format", "fp32")
MARK = "openvino_model.xml"
LINES_SHOWN = 8

Progress = Callable[[str], None]


class OpenVinoMissingError(RuntimeError):
    """OpenVINO GenAI can not take part; the message says why."""


def openvino_folder(model: str, venv: Path, progress: Progress) -> Path:
    """The exported model, made where it is not there yet: float32 weights, the very numbers that our engine uses."""
    exporter = venv / "bin" / "optimum-cli"
    if not exporter.exists():
        raise OpenVinoMissingError(f"{venv} has no optimum-cli: `make bench-peers` sets it up")
    target = cache_dir() / "openvino" / f"{Path(model).name}-float32"
    if (target / MARK).exists():
        progress(f"the exported model is there: {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the final folder, so that the last step is a rename: a folder under that name is complete.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as work:
        source, result = Path(work) / "source", Path(work) / "result"
        progress(f"writing {model} as a Hugging Face folder")
        export_huggingface(open_model(model).load(torch.float32), source)
        progress("exporting it to OpenVINO")
        _export([str(exporter), *EXPORTER, "--model", str(source), str(result)])
        shutil.rmtree(target, ignore_errors=True)
        os.replace(result, target)
    return target


def folder_mib(folder: Path) -> int:
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20)


def _export(command: list[str]) -> None:
    # The folder is complete, so nothing needs to be asked of a hub.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-LINES_SHOWN:]
        said = "\n".join(f"  {line}" for line in lines)
        raise OpenVinoMissingError(f"the export failed (exit code {done.returncode}). Its last lines:\n{said}")
