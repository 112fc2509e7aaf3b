"""Folders of trained drafters: what is read, what is refused and how the message helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adaptive.requests import Request, Sampling
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.drafters import HeadDrafter
from engine.drafters.formats import KINDS, open_heads
from engine.drafters.head_format import Kind
from engine.drafters.vocabulary import Target, draft_ids
from engine.llm import load_engine
from engine.models.decoder import Decoder
from engine.models.source import open_model
from tests.engine.heads import SLICE, HeadSpec, TrainedHeads, built, write_heads
from tests.engine.models.hf_folders import change_json, write_folder
from tests.engine.test_heads import EVERY
from tests.engine.tiny import TINY, Cycling, random_weights, run_all, tokens_of


@EVERY
def test_a_folder_says_what_it_is(spec: HeadSpec) -> None:
    found = built(spec)
    assert (found.kind, found.count, found.draft_vocab) == (spec.kind, spec.count, spec.draft_vocab)
    found.check(spec.model)


def test_names_may_start_with_model(tmp_path: Path) -> None:
    write_heads(tmp_path, HeadSpec("eagle1"))
    change_tensors(tmp_path, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()})
    assert "fc.weight" in open_heads(tmp_path).tensors


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("ids", "layers", "read"),
    [
        ((), 30, (2, 15, 27)),
        ((2, 14, 26), 30, (2, 14, 26)),
        ((1, 14, 26), 30, (2, 15, 27)),
        ((0, 1, 2), 2, (0, 1, 2)),
    ],
    ids=["default", "what goes in", "what comes out", "up to the last"],
)
def test_layers_in_both_conventions(ids: tuple[int, ...], layers: int, read: tuple[int, ...]) -> None:
    assert replace(built(HeadSpec("eagle3")), aux_ids=ids).aux_layers(layers) == read


# --- refused ---------------------------------------------------------------------------------------------------------

EAGLE3, MEDUSA = HeadSpec("eagle3", ids=SLICE), HeadSpec("medusa", count=2)
CONFIGS: dict[str, tuple[HeadSpec, dict[str, Any], str]] = {
    "another architecture": (
        EAGLE3,
        {"architectures": ["LlamaForCausalLM"]},
        r"config.json: architectures=\['LlamaForCausalLM'\] is no trained drafter; supported: .*Eagle3.*'model'",
    ),
    "no architecture": (EAGLE3, {"architectures": ...}, r"config.json: architectures=\[\] is no trained drafter"),
    "no hidden size": (MEDUSA, {"hidden_size": ...}, r"config.json has no 'hidden_size'"),
    "two layers": (
        EAGLE3,
        {"num_hidden_layers": 2},
        r"config.json: num_hidden_layers=2 is not supported; supported: 1",
    ),
    "no heads": (EAGLE3, {"num_attention_heads": 0}, r"config.json: num_attention_heads=0 is not valid"),
    "no Medusa heads": (MEDUSA, {"medusa_num_heads": 0}, r"config.json: medusa_num_heads=0 is not supported"),
    "no Medusa layers": (MEDUSA, {"medusa_num_layers": 0}, r"config.json: medusa_num_layers=0 is not valid"),
    "another variant": (EAGLE3, {"norm_before_residual": True}, r"config.json: norm_before_residual is not supported"),
    "another size": (
        EAGLE3,
        {"head_dim": 8},
        r"model.safetensors: tensor '.*' has shape \[.*\], and by config.json it",
    ),
}


@pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_refused(case: tuple[HeadSpec, dict[str, Any], str], tmp_path: Path) -> None:
    spec, changes, message = case
    write_heads(tmp_path, spec)
    change_json(tmp_path / "config.json", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        open_heads(tmp_path)
    assert str(tmp_path) in str(caught.value)


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


TENSORS: dict[str, tuple[HeadSpec, Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "one missing": (EAGLE3, without("midlayer.hidden_norm.weight"), "lacks the tensor 'midlayer.hidden_norm.weight'"),
    "two missing": (EAGLE3, without("fc.weight", "norm.weight"), "lacks the tensor 'fc.weight' and 1 more"),
    "no table": (EAGLE3, without("d2t"), "lacks the tensor 'd2t'.*which of the model's tokens can be drafted"),
    "one too many": (EAGLE3, lambda found: found | {"gate": torch.zeros(1)}, "not supported: 'gate'"),
    "half of the heads' own": (
        replace(MEDUSA, own_head=True),
        without("1.1.weight"),
        "lacks the tensor '1.1.weight'",
    ),
}


@pytest.mark.parametrize("case", TENSORS.values(), ids=TENSORS)
def test_tensors_are_refused(
    case: tuple[HeadSpec, Callable[[dict[str, Tensor]], dict[str, Tensor]], str], tmp_path: Path
) -> None:
    spec, change, message = case
    write_heads(tmp_path, spec)
    change_tensors(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        open_heads(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"draft_model='.*nowhere' is no folder: give one with config.json"):
        open_heads(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"has no config.json"):
        open_heads(tmp_path)
    write_heads(tmp_path, EAGLE3)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor"):
        open_heads(tmp_path)


def test_another_models_drafter_is_refused() -> None:
    found = built(EAGLE3)
    with pytest.raises(
        ValueError, match=r"has hidden_size=16 and the model 32: .* take a drafter that was trained for"
    ):
        found.check(replace(TINY, hidden_size=32))
    with pytest.raises(ValueError, match=r"has vocab_size=11 and the model 12"):
        found.check(replace(TINY, vocab_size=12))
    with pytest.raises(
        ValueError, match=r"layers \[0, 1, 2\] and the model has 1: set eagle_aux_hidden_state_layer_ids"
    ):
        found.check(replace(TINY, num_layers=1))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"d2t": torch.tensor([0, 9, 9])}, "d2t names token 11, outside the model's vocabulary of 11"),
        ({"d2t": torch.tensor([0, -2])}, "d2t names token -1"),
        ({"d2t": torch.tensor([1, 0])}, "d2t names a token twice"),
        ({"d2t": torch.tensor([1]), "t2d": torch.arange(11) < 1}, "t2d and d2t name different tokens"),
    ],
    ids=["too high", "negative", "twice", "another mask"],
)
def test_a_table_that_makes_no_sense_is_refused(tables: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"heads: {message}"):
        draft_ids(tables, 11, "heads")


def test_a_table_of_every_token_in_its_place_is_none() -> None:
    assert draft_ids({"d2t": torch.zeros(11, dtype=torch.int64)}, 11, "heads") is None
    assert draft_ids({}, 11, "heads") is None
    ids_D = draft_ids({"d2t": torch.tensor([1, 1, 2])}, 11, "heads")
    assert ids_D is not None
    assert ids_D.tolist() == [1, 2, 4]


# --- loaded ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("target"))


def spec_for(model: Path, kind: Kind) -> HeadSpec:
    shape = open_model(model).config
    count = 1 if kind.startswith("eagle") else 2
    return HeadSpec(kind, shape, ids=tuple(range(3, 40)), count=count)


@pytest.mark.parametrize("kind", [*KINDS, "draft"])
def test_load_engine_drafts_by_a_folder(kind: Kind, model: Path, tmp_path: Path) -> None:
    folder = write_heads(tmp_path / kind, spec_for(model, kind))
    sizes: dict[str, Any] = {"max_batch": 2, "context_len": 48, "max_gamma": 3, "dtype": "float64"}
    told: list[tuple[int, int]] = []
    name = "model" if kind == "draft" else kind
    engine = load_engine(
        model, drafter=name, draft_model=folder, progress=lambda done, total: told.append((done, total)), **sizes
    )
    assert engine.drafter is not None
    assert engine.drafter.name == name
    assert told[-1][0] == told[-1][1]
    plain = load_engine(model, drafter=None, **sizes)
    answers = []
    for one, gammas in ((engine, (2, 0, 1)), (plain, (0,))):
        one.attach(Cycling(gammas))
        answers.append(tokens_of(run_all(one, [Request([5, 6, 7], Sampling(max_tokens=20), id="one")])["one"]))
    assert answers[0] == answers[1]


def test_another_kind_than_asked_for_is_refused(model: Path, tmp_path: Path) -> None:
    write_heads(tmp_path, spec_for(model, "medusa"))
    with pytest.raises(ValueError, match=r"holds a drafter of kind 'medusa': load it with drafter='medusa'"):
        load_engine(model, drafter="eagle3", draft_model=tmp_path)


def test_another_models_folder_is_refused_before_anything_is_loaded(model: Path, tmp_path: Path) -> None:
    write_heads(tmp_path, HeadSpec("eagle3"))
    with pytest.raises(ValueError, match=r"has hidden_size=16 and the model 32"):
        load_engine(model, drafter="eagle3", draft_model=tmp_path)


def test_a_whole_head_is_shared() -> None:
    weights = random_weights(TINY)
    decoder = Decoder(TINY, weights, 96, "cpu")
    drafter = TrainedHeads(HeadSpec("eagle1")).make(EngineConfig(dtype="float64", context_len=96), decoder, weights)
    assert isinstance(drafter, HeadDrafter)
    assert drafter._modules[0].head is decoder.head  # type: ignore[attr-defined]
    assert Target.of(decoder, weights).head_VE is weights["model.embed_tokens.weight"]
    assert isinstance(LLMEngine(decoder, EngineConfig(dtype="float64", context_len=96), drafter=drafter), LLMEngine)
