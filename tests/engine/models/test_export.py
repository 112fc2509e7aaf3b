from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.checkpoint import Checkpoint
from engine.models.export import export_huggingface
from engine.models.gguf import load_gguf
from engine.models.huggingface import load_huggingface
from tests.engine.gguf_files import TOKENS, TinyGguf
from tests.engine.models.hf_folders import SHAPES, byte_level, sentencepiece, write_folder, write_tokenizer

transformers: Any = pytest.importorskip("transformers")

TEXTS = ("hello there", " hello\n", "<|im_start|>user", "12 é 日")
CHAT = [{"role": "user", "content": "hello"}]


def exported(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    export_huggingface(checkpoint, folder)
    return load_huggingface(folder, checkpoint.weights["model.norm.weight"].dtype)


def require_same(one: Checkpoint, other: Checkpoint) -> None:
    assert one.config == other.config
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    here, there = one.tokenizer, other.tokenizer
    assert (here.eos_ids, here.bos_id, here.vocabulary()) == (there.eos_ids, there.bos_id, there.vocabulary())
    for text in TEXTS:
        assert here.encode(text) == there.encode(text)
        assert here.decode(here.encode(text)) == there.decode(there.encode(text))
    assert here.apply_chat(CHAT) == there.apply_chat(CHAT)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_variant_reads_back_as_it_was(tmp_path: Path, shape: str) -> None:
    before = load_huggingface(write_folder(tmp_path / "in", shape))
    require_same(before, exported(before, tmp_path / "out"))


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_becomes_a_folder(tmp_path: Path, arch: str) -> None:
    before = load_gguf(TinyGguf(arch=arch).write(tmp_path / "tiny.gguf"), torch.bfloat16)
    require_same(before, exported(before, tmp_path / "out"))


def test_a_first_token_that_only_the_file_knew_of_is_written(tmp_path: Path) -> None:
    path = TinyGguf(add_bos=True).write(tmp_path / "tiny.gguf")
    before = load_gguf(path)
    assert before.tokenizer.bos_id == 1
    require_same(before, exported(before, tmp_path / "out"))


@pytest.mark.parametrize("backend", [byte_level(bos=True), sentencepiece()], ids=["byte level", "sentencepiece"])
def test_a_first_token_is_not_written_twice(tmp_path: Path, backend: Any) -> None:
    folder = write_folder(tmp_path / "in")
    write_tokenizer(folder, backend)
    before = load_huggingface(folder)
    assert before.tokenizer.bos_id is not None
    require_same(before, exported(before, tmp_path / "out"))


def test_transformers_reads_the_same_model(tmp_path: Path) -> None:
    before = load_gguf(TinyGguf().write(tmp_path / "tiny.gguf"))
    export_huggingface(before, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.float32
    for name, tensor in theirs.state_dict().items():
        if name in before.weights:
            assert torch.equal(tensor, before.weights[name])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert chat == before.tokenizer.apply_chat(CHAT)
    assert tokenizer("hello there").input_ids == before.tokenizer.encode("hello there")
    assert len(tokenizer) == len(TOKENS)


def test_generation_stops_where_ours_does(tmp_path: Path) -> None:
    before = load_gguf(TinyGguf().write(tmp_path / "tiny.gguf"))
    export_huggingface(before, tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        record = json.loads((tmp_path / "out" / name).read_text(encoding="utf-8"))
        assert record["eos_token_id"] == sorted(before.tokenizer.eos_ids)
