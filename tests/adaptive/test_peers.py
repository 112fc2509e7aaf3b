from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive.peers import load_transformers
from engine.models.gguf import load_gguf
from engine.models.huggingface import load_huggingface
from tests.engine.gguf_files import CONTEXT, HEAD_DIM, TOKENS, TinyGguf
from tests.engine.models.hf_folders import SHAPES, write_folder

transformers = pytest.importorskip("transformers")


@torch.inference_mode()
def their_logits(path: Path, ids: torch.Tensor) -> torch.Tensor:
    """By transformers' own GGUF loader, which shares nothing with ours but the file."""
    settings = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    settings.head_dim = HEAD_DIM  # its loader does not read this
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, config=settings, dtype=torch.float32
    )
    logits: torch.Tensor = model(ids).logits
    return logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_logits_equal_those_of_transformers_own_loader(
    tmp_path: Path, arch: str, tied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = TinyGguf(arch=arch, tied=tied).write(tmp_path / "tiny.gguf")
    ids = torch.randint(len(TOKENS), (2, 24), generator=torch.Generator().manual_seed(0))
    peer: Any = load_transformers(load_gguf(path))
    with torch.inference_mode():
        logits = peer(ids).logits
    torch.testing.assert_close(logits, their_logits(path, ids), atol=1e-5, rtol=0)
    assert peer.config.model_type == arch


@pytest.mark.parametrize("shape", SHAPES)
def test_every_variant_is_the_model_that_transformers_reads_from_the_folder(tmp_path: Path, shape: str) -> None:
    folder = write_folder(tmp_path, shape)
    peer: Any = load_transformers(load_huggingface(folder))
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(len(TOKENS), (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(peer(ids).logits, own(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_sliding_window_hides_what_is_older(tmp_path: Path, arch: str) -> None:
    path = TinyGguf(arch=arch, integers={f"{arch}.attention.sliding_window": 4}).write(tmp_path / "tiny.gguf")
    peer: Any = load_transformers(load_gguf(path))
    ids = torch.arange(10, 34).unsqueeze(0)
    changed = ids.clone()
    changed[0, 0] = 5
    with torch.inference_mode():
        difference = (peer(ids).logits - peer(changed).logits).abs().amax(-1)[0]
    reach = 1 + 2 * (4 - 1)  # two layers, each three tokens further back
    assert difference[reach - 1] > 1e-3
    assert difference[reach:].max() < 1e-5


def test_weights_are_shared_not_copied(tmp_path: Path) -> None:
    checkpoint = load_gguf(TinyGguf().write(tmp_path / "tiny.gguf"), torch.bfloat16)
    peer: Any = load_transformers(checkpoint, attention="eager")
    embedding = peer.get_input_embeddings().weight
    assert embedding.data_ptr() == checkpoint.weights["model.embed_tokens.weight"].data_ptr()
    assert embedding.data_ptr() == peer.get_output_embeddings().weight.data_ptr()
    assert peer.dtype == torch.bfloat16
    assert peer.config.max_position_embeddings == CONTEXT


@pytest.mark.real
def test_the_real_model_knows_paris(smollm2_path: Path) -> None:
    checkpoint = load_gguf(smollm2_path)
    peer: Any = load_transformers(checkpoint)
    tokenizer = checkpoint.tokenizer
    prompt = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.inference_mode():
        assert torch.isfinite(peer(prompt).logits).all()
        answer = peer.generate(prompt, max_new_tokens=2, do_sample=False)[0, prompt.shape[1] :]
        assert tokenizer.decode(answer.tolist()).strip().startswith("Paris")
        chat = tokenizer.apply_chat([{"role": "user", "content": "What is the capital of France?"}])
        asked = torch.tensor([tokenizer.encode(chat)])
        said = peer.generate(asked, max_new_tokens=20, do_sample=False)[0, asked.shape[1] :].tolist()
    assert "Paris" in tokenizer.decode(said)
    assert said[-1] in tokenizer.eos_ids
