"""A Checkpoint to a Hugging Face folder: for programs that read such a folder and not the file it came from.

`hf_config.py`, `hf_tokenizer.py` and `huggingface.py` read back what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def export_huggingface(checkpoint: Checkpoint, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files, in the dtype of the checkpoint's weights.

    The folder is made where it is not there; files of these names are replaced. OSError when it can not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = checkpoint.tokenizer
    dtype = str(checkpoint.weights["model.norm.weight"].dtype).removeprefix("torch.")
    ends = {"eos_token_id": sorted(tokenizer.eos_ids), "bos_token_id": tokenizer.bos_id}
    settings = config_json(checkpoint.config)
    names = {"architectures": [ARCHITECTURES[settings["model_type"]]], "dtype": dtype}
    _write_json(folder / "config.json", names | settings | ends)
    _write_json(folder / "generation_config.json", ends)
    tokenizer.save(folder / "tokenizer.json")
    _write_json(folder / "tokenizer_config.json", _tokenizer_json(checkpoint))
    if tokenizer.chat_template is not None:
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template.source, encoding="utf-8")
    # Contiguous, as safetensors wants them: some readers hand out transposed views.
    weights = {name: tensor.contiguous() for name, tensor in checkpoint.weights.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def config_json(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of the shape; `model_type` is the family that has this variant."""
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope_json(config),
        "tie_word_embeddings": config.tie_embeddings,
    }
    windowed = config.sliding_window is not None
    if config.qk_norm or (config.qkv_bias and not config.out_bias):
        settings["model_type"] = "qwen3" if config.qk_norm else "qwen2"
        settings |= {"use_sliding_window": windowed, "max_window_layers": 0}
    else:
        settings["model_type"] = "mistral" if windowed else "llama"
    if windowed:
        settings["sliding_window"] = config.sliding_window
    if config.qk_norm or settings["model_type"] == "llama":
        settings["attention_bias"] = config.out_bias
    return settings


def rope_json(config: ModelConfig) -> dict[str, Any]:
    """`rope_parameters`, as transformers has them since its version 5."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    return {
        "rope_type": "llama3",
        "rope_theta": config.rope_theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context_len,
    }


def _tokenizer_json(checkpoint: Checkpoint) -> dict[str, object]:
    tokenizer = checkpoint.tokenizer
    texts = {token: text for text, token in tokenizer.vocabulary().items()}
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": checkpoint.config.context_len,
    }
    if tokenizer.eos_ids:
        settings["eos_token"] = texts[min(tokenizer.eos_ids)]
    if tokenizer.bos_id is not None:
        settings["bos_token"] = texts[tokenizer.bos_id]
    if tokenizer.chat_template is not None:
        # What its template calls the first and last token goes before what we know of them.
        settings |= {name: text for name, text in tokenizer.chat_template.tokens.items() if text}
    return settings


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
