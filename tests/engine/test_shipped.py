"""Drafters that come with the package: found by name, and the real ones as they ought to be."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine import LLMEngine, load_engine
from engine.drafters import shipped
from engine.drafters.head_format import Kind
from engine.drafters.shipped import METHODS, ShippedDrafter, shipped_drafter, shipped_drafters
from engine.models import fetch
from engine.models.fetch import KNOWN_MODELS, KnownModel
from engine.models.source import open_model
from tests.engine.gguf_files import TinyGguf
from tests.engine.heads import HeadSpec, write_heads

NAME = "tiny"
MOST_MB = 40.0
REAL = [one for model in KNOWN_MODELS for one in shipped_drafters(model)]
EACH_REAL = pytest.mark.parametrize("one", REAL, ids=lambda one: one.folder.name)
NONE_THERE = pytest.mark.skipif(not REAL, reason="no trained drafter is in engine/data/drafters yet")


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model that is known by name and cached, and an empty folder of drafters."""
    monkeypatch.setenv("ADAPTIVE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models").mkdir(parents=True)
    path = TinyGguf().write(tmp_path / "cache" / "models" / "tiny.gguf")
    one = KnownModel(NAME, "none", "", "tiny.gguf", "", path.stat().st_size, "Apache-2.0", "a tiny model")
    monkeypatch.setitem(fetch.KNOWN_MODELS, NAME, one)
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "drafters")
    return NAME


def ship(kind: Kind) -> Path:
    count = 1 if kind.startswith("eagle") else 2
    spec = HeadSpec(kind, open_model(NAME).config, ids=tuple(range(3, 40)), count=count)
    return write_heads(shipped.ROOT / f"{NAME}-{kind}", spec)


@pytest.mark.parametrize(("drafter", "method"), METHODS.items())
def test_a_drafter_is_the_packages_own_unless_given(known: str, drafter: str, method: Kind) -> None:
    folder = ship(method)
    assert shipped_drafter(known, drafter) == shipped_drafter(known, method) == folder
    engine = load_engine(known, drafter=drafter, max_batch=2, context_len=48, max_gamma=3)
    assert engine.drafter is not None
    assert engine.drafter.name == drafter


def test_where_there_is_none_the_message_says_what_to_do(known: str) -> None:
    ship("eagle1")
    with pytest.raises(ValueError, match=r"no drafter='eagle3' for tiny comes with the package") as caught:
        load_engine(known, drafter="eagle3")
    assert "draft_model=FOLDER" in str(caught.value)
    assert "adaptive train --method eagle3 --target tiny" in str(caught.value)
    with pytest.raises(ValueError, match="adaptive train --method draft --target tiny"):
        load_engine(known, drafter="model")


def test_all_of_a_model_are_listed_with_their_size(known: str) -> None:
    folders = [ship("eagle3"), ship("draft")]
    found = list(shipped_drafters(known))
    assert [(one.drafter, one.method) for one in found] == [("eagle3", "eagle3"), ("model", "draft")]
    assert [one.size_bytes for one in found] == [
        sum(path.stat().st_size for path in folder.iterdir()) for folder in folders
    ]


def test_a_path_is_no_known_name(known: str, tmp_path: Path) -> None:
    ship("eagle3").rename(tmp_path / "mine-eagle3")
    assert shipped_drafter(str(tmp_path / "mine"), "eagle3") is None
    assert shipped_drafter("../mine", "eagle3") is None


def test_they_are_data_of_the_package() -> None:
    assert Path(str(files("engine"))) / "data" / "drafters" == shipped.ROOT


# --- the real ones ---------------------------------------------------------------------------------------------------


@NONE_THERE
def test_all_of_them_are_small() -> None:
    sizes = {one.folder.name: one.size_bytes / 1e6 for one in REAL}
    print(f"\nMB: {sizes}")
    assert sum(sizes.values()) <= MOST_MB


@NONE_THERE
@EACH_REAL
def test_weights_are_in_half_precision(one: ShippedDrafter) -> None:
    tensors = load_file(one.folder / "model.safetensors")
    weights = {name: tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    assert weights
    assert set(weights.values()) == {torch.float16}


@NONE_THERE
@EACH_REAL
def test_the_card_says_what_a_user_has_to_know(one: ShippedDrafter) -> None:
    card = (one.folder / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "Licence: Apache-2.0" in card
    assert f"base_model: {one.target}" in card
    assert "Trained for " in card
    text, acceptance = card.split("## Training text")[1].split("## Acceptance")
    assert text.count("\n| ") >= 2, "a line at least for what was learnt from"
    assert "| α1 | α2 | α3 |" in acceptance
    tasks = {line.split("|")[2].strip() for line in acceptance.splitlines() if line.startswith("| ")}
    assert len(tasks) >= 3, "by task"


@NONE_THERE
@EACH_REAL
def test_the_folder_names_its_target(one: ShippedDrafter) -> None:
    assert json.loads((one.folder / "config.json").read_text(encoding="utf-8"))["target"] == one.target


@pytest.mark.real
@NONE_THERE
@EACH_REAL
def test_each_loads_by_its_name(one: ShippedDrafter, smollm2_path: Path) -> None:
    engine = load_engine(one.target, drafter=one.drafter, max_batch=1, context_len=128)
    assert isinstance(engine, LLMEngine)
    assert engine.drafter is not None
    assert engine.drafter.name == one.drafter
