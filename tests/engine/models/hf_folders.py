"""Writes tiny Hugging Face folders: models by transformers' own classes, tokenizers by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tests.engine.gguf_files import CHAT_TEMPLATE, MERGES, SPECIAL, TOKENS

transformers: Any = pytest.importorskip("transformers")

CONTEXT = 128
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS) + 18,  # padded, as published models are
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SMOLLM: dict[str, Any] = SIZES | {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1}
WINDOW = 7

SHAPES: dict[str, Any] = {
    "llama3": transformers.LlamaConfig(**SIZES, rope_parameters=dict(LLAMA3_ROPE)),
    "llama with biases": transformers.LlamaConfig(**SIZES, attention_bias=True, head_dim=12),
    "smollm": transformers.LlamaConfig(**SMOLLM, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "mistral without window": transformers.MistralConfig(**SIZES, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 with window": transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0
    ),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True),
    "qwen3 with biases": transformers.Qwen3Config(**SIZES, head_dim=12, attention_bias=True),
}


def write_folder(
    folder: Path, shape: str = "llama3", *, dtype: torch.dtype = torch.float32, max_shard_size: str = "1GB"
) -> Path:
    """A complete folder of the named shape: seeded weights, large enough that every part of the model matters."""
    model = transformers.AutoModelForCausalLM.from_config(SHAPES[shape])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * values if name.endswith("norm.weight") else 0.3 * values)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder, byte_level())
    return folder


def write_tokenizer(folder: Path, backend: tokenizers.Tokenizer, **settings: object) -> None:
    """tokenizer.json and tokenizer_config.json, with a chat template unless `settings` says otherwise."""
    backend.save(str(folder / "tokenizer.json"))
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE}
    write_json(folder / "tokenizer_config.json", defaults | settings)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def change_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON file; `...` takes a key out."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    write_json(path, {key: value for key, value in values.items() if value is not ...})


def byte_level(bos: bool = False) -> tokenizers.Tokenizer:
    """As Llama 3's and Qwen's: a character for each byte; `bos` puts <|im_start|> before every text."""
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
    backend = tokenizers.Tokenizer(models.BPE({text: token for token, text in enumerate(TOKENS)}, merges))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if bos:
        backend.post_processor = _before("<|im_start|>", 1)
    return backend


SP_SPECIAL = ("<unk>", "<s>", "</s>")
SP_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SP_MERGES = ("▁ h", "▁h e", "l l", "▁ ▁", "▁▁ ▁▁", "▁he ll", "o ▁")
SP_LETTERS = [*"▁abcdefghijklmnopqrstuvwxyz.,é日"]
SP_TOKENS = [*SP_SPECIAL, *SP_BYTES, *SP_LETTERS, *(merge.replace(" ", "") for merge in SP_MERGES)]


def sentencepiece(prepend: str = "normalizer") -> tokenizers.Tokenizer:
    """As Llama 2's (`prepend="normalizer"`) or Mistral's ("metaspace"): ▁ for a space, byte tokens for the rest."""
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in SP_MERGES)]
    vocab = {text: token for token, text in enumerate(SP_TOKENS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SP_SPECIAL])
    if prepend == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = _before("<s>", 1)
    return backend


def _before(token: str, number: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=f"{token} $A", pair=None, special_tokens=[(token, number)])
