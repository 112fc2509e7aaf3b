from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.train.build import METHODS
from engine.train.files import load_drafter, read_settings, save_drafter
from tests.engine.train.tiny_school import CONFIG, lesson_of, random_documents, tiny_drafter, tiny_school

BLOCK = {
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_attention_layernorm.weight",
}
NAMES = {
    "eagle3": {"fc.weight", "norm.weight", "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"}
    | {f"midlayer.{name}" for name in BLOCK},
    "eagle1": {"fc.weight", "fc.bias"} | {f"layers.0.{name}" for name in BLOCK},
    "medusa": {
        f"{head}.{layer}.linear.{kind}" for head in range(3) for layer in range(2) for kind in ("weight", "bias")
    },
    "mtp": {f"layers.0.{name}" for name in BLOCK | {"input_layernorm.weight", "enorm.weight", "hnorm.weight"}}
    | {"layers.0.eh_proj.weight", "layers.0.shared_head.norm.weight"},
    "draft": {f"model.layers.{layer}.{name}" for layer in range(2) for name in BLOCK | {"input_layernorm.weight"}}
    | {"model.norm.weight"},
}


@pytest.mark.parametrize("method", METHODS)
def test_names_and_types_are_those_of_the_format(method: str, tmp_path: Path) -> None:
    school = tiny_school(tokens=100)
    size = save_drafter(tmp_path, tiny_drafter(method), CONFIG, school.vocab, "tiny")
    tensors = load_file(tmp_path / "model.safetensors")
    assert size == (tmp_path / "model.safetensors").stat().st_size
    assert tensors.keys() - {"d2t", "t2d"} == NAMES[method]
    assert {tensors[name].dtype for name in NAMES[method]} == {torch.float16}
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert tensors["t2d"].shape == (CONFIG.vocab_size,)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["draft_vocab_size"] == 100
    assert settings["hidden_size"] == CONFIG.hidden_size
    assert settings["head_dim"] == CONFIG.head_dim


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_comes_back_as_it_was(method: str, tmp_path: Path) -> None:
    school = tiny_school(tokens=100)
    drafter = tiny_drafter(method).eval()
    lesson = lesson_of(school, random_documents(2, 20), [drafter], 3)
    drafter.begin(lesson.features)
    save_drafter(tmp_path, drafter, CONFIG, school.vocab, "tiny", torch.float64)
    other = tiny_drafter(method, seed=9).eval()
    vocab = load_drafter(tmp_path, other)
    assert torch.equal(vocab.ids_S, school.vocab.ids_S)
    for mine, its in zip(drafter.outputs(lesson, 3), other.outputs(lesson, 3), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def test_the_vocabulary_maps_both_ways(tmp_path: Path) -> None:
    from engine.train.draft_vocab import DraftVocab

    vocab = DraftVocab.of(torch.tensor([9, 3, 200]), CONFIG.vocab_size)
    save_drafter(tmp_path, tiny_drafter("medusa"), CONFIG, vocab, "tiny")
    tensors = load_file(tmp_path / "model.safetensors")
    assert (torch.arange(3) + tensors["d2t"]).tolist() == [3, 9, 200]
    assert tensors["t2d"].nonzero().flatten().tolist() == [3, 9, 200]


def test_what_is_not_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load_drafter(tmp_path, tiny_drafter("medusa"))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_drafter(tmp_path, tiny_drafter("medusa"))
    save_drafter(tmp_path, tiny_drafter("mtp"), CONFIG, tiny_school().vocab, "tiny")
    with pytest.raises(ValueError, match="does not hold a drafter of this kind"):
        load_drafter(tmp_path, tiny_drafter("medusa"))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="not a JSON object"):
        read_settings(tmp_path)


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    drafter = tiny_drafter("medusa")
    with torch.no_grad():
        next(iter(drafter.parameters())).fill_(1e6)
    with pytest.raises(ValueError, match="can not hold"):
        save_drafter(tmp_path, drafter, CONFIG, tiny_school().vocab, "tiny")
