"""Folders that transformers wrote, against transformers' own reading of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adaptive.requests import Request, Sampling
from engine import load_engine
from engine.attention import ChunkAttention, causal_mask
from engine.kv import KVCache
from engine.models.checkpoint import Checkpoint
from engine.models.config import RopeScaling
from engine.models.decoder import Decoder
from engine.models.huggingface import load_huggingface
from tests.engine.models.hf_folders import (
    CONTEXT,
    LLAMA3_ROPE,
    SHAPES,
    WINDOW,
    change_json,
    transformers,
    write_folder,
)
from tests.engine.tiny import Cycling, run_all, tokens_of

# Longer than the context that `llama3` was scaled from, and than the windows.
TOKENS = torch.randint(270, (90,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Written once for all tests that do not change it."""
    written: dict[str, Path] = {}

    def folder(shape: str) -> Path:
        if shape not in written:
            written[shape] = write_folder(tmp_path_factory.mktemp("model"), shape)
        return written[shape]

    return folder


@torch.inference_mode()
def our_logits(checkpoint: Checkpoint) -> Tensor:
    config = checkpoint.config
    decoder = Decoder(config, checkpoint.weights, CONTEXT, "cpu")
    kv = KVCache.allocate(config, rows=1, capacity=CONTEXT, dtype=decoder.dtype, device="cpu")
    position_T = torch.arange(len(TOKENS))
    groups = config.num_heads // config.num_kv_heads
    mask = causal_mask(position_T.unsqueeze(0), CONTEXT, config.sliding_window, groups, decoder.dtype)
    attention = ChunkAttention(kv, position_T, torch.arange(CONTEXT), mask)
    return decoder.logits(decoder.forward(torch.tensor(TOKENS), position_T, attention))


def their_model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()
def their_logits(folder: Path) -> Tensor:
    logits: Tensor = their_model(folder)(torch.tensor([TOKENS])).logits[0]
    return logits


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.std() > 0.5, "logits too flat to tell models apart"
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_those_of_transformers(folder_of: Callable[[str], Path], shape: str) -> None:
    folder = folder_of(shape)
    checkpoint = load_huggingface(folder)
    assert_same(our_logits(checkpoint), their_logits(folder))
    assert checkpoint.config.num_parameters() == sum(weight.numel() for weight in checkpoint.weights.values())


@pytest.mark.parametrize("shape", ["llama3", "mistral", "qwen2", "qwen3"])
def test_the_engine_decodes_what_transformers_generates(folder_of: Callable[[str], Path], shape: str) -> None:
    folder = folder_of(shape)
    engine = load_engine(folder, max_batch=2, max_gamma=4)
    assert engine.config.context_len == CONTEXT, "the model's limit is below the default"
    engine.attach(Cycling((0, 3, 4, 1)))
    request = Request(TOKENS[:60], Sampling(max_tokens=24, ignore_eos=True), id="a")
    model = their_model(folder)
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([TOKENS[:60]])
    everything = torch.ones_like(prompt)
    theirs = model.generate(prompt, attention_mask=everything, max_new_tokens=24, do_sample=False, pad_token_id=0)
    assert tokens_of(run_all(engine, [request])["a"]) == theirs[0, 60:].tolist()


def test_what_sets_a_model_apart_changes_its_logits(folder_of: Callable[[str], Path]) -> None:
    """So that the comparison above would notice if it were not read."""
    for shape in ("llama3", "mistral"):
        checkpoint = load_huggingface(folder_of(shape))
        plain = replace(checkpoint, config=replace(checkpoint.config, rope_scaling=None, sliding_window=None))
        difference = (our_logits(checkpoint) - our_logits(plain)).abs().amax(-1)
        assert difference[WINDOW:].median() > 0.1, shape


def test_both_spellings_of_rotary_scaling(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    config = load_huggingface(folder_of("llama3")).config
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 32)
    assert config.rope_theta == LLAMA3_ROPE["rope_theta"]
    old = write_folder(tmp_path, "llama3")
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    change_json(old / "config.json", rope_parameters=..., rope_theta=1000.0, rope_scaling=scaling)
    assert load_huggingface(old).config == config


def test_shards_and_their_index(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "qwen3", max_shard_size="40KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "model.safetensors").exists()
    whole, sharded = load_huggingface(folder_of("qwen3")), load_huggingface(folder)
    assert sharded.weights.keys() == whole.weights.keys()
    assert all(torch.equal(sharded.weights[name], weight) for name, weight in whole.weights.items())


def test_a_bfloat16_checkpoint_runs_in_float32(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "smollm", dtype=torch.bfloat16)
    stored = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    checkpoint = load_huggingface(folder)
    assert {weight.dtype for weight in checkpoint.weights.values()} == {torch.float32}
    assert_same(our_logits(checkpoint), their_logits(folder))


def test_progress_counts_the_bytes_of_the_files(folder_of: Callable[[str], Path]) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = load_huggingface(folder_of("qwen2"), torch.bfloat16, lambda *at: seen.append(at))
    total = checkpoint.config.weight_bytes(torch.float32)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


def test_stored_frequencies_and_a_tied_head_are_left_out(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "smollm")
    weights = load_file(folder / "model.safetensors")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6), "lm_head.weight": torch.zeros(288, 36)}
    save_file(weights | extra, folder / "model.safetensors")
    assert load_huggingface(folder).weights.keys() == load_huggingface(folder_of("smollm")).weights.keys()


NORM = "model.layers.1.input_layernorm.weight"
WEIGHTS_ERRORS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({NORM: None}, rf"lacks the tensor '{NORM}'"),
    "two missing": ({NORM: None, "model.norm.weight": None}, rf"lacks the tensor '{NORM}' and 1 more"),
    "extra": ({"model.layers.0.surprise": torch.ones(3)}, "not supported: 'model.layers.0.surprise'"),
    "shape": ({NORM: torch.ones(5)}, rf"tensor '{NORM}' has shape \[5\], and by config.json it must have \[36\]"),
    "type": ({NORM: torch.ones(36, dtype=torch.int8)}, rf"tensor '{NORM}' is stored as I8, .* use F64, F32, BF16, F16"),
}


@pytest.mark.parametrize(("changes", "message"), WEIGHTS_ERRORS.values(), ids=WEIGHTS_ERRORS)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, Tensor | None], message: str) -> None:
    folder = write_folder(tmp_path, "smollm")
    weights: dict[str, Tensor | None] = dict(load_file(folder / "model.safetensors"))
    kept = {name: weight for name, weight in (weights | changes).items() if weight is not None}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load_huggingface(folder)


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "smollm", max_shard_size="60KB")
    index = folder / "model.safetensors.index.json"
    shard = folder / json.loads(index.read_text())["weight_map"]["model.norm.weight"]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=rf"{shard.name} can not be read: it is truncated or damaged"):
        load_huggingface(folder)
    shard.unlink()
    with pytest.raises(ValueError, match=rf"has no {shard.name}, which model.safetensors.index.json names"):
        load_huggingface(folder)
    save_file({"other": torch.ones(1)}, shard)
    with pytest.raises(ValueError, match=rf"{shard.name} has no tensor '.*', which .* places there"):
        load_huggingface(folder)
    index.unlink()
    with pytest.raises(ValueError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        load_huggingface(folder)
