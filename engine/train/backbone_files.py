"""A tuned model as a Hugging Face folder: weights, config.json, tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.train.medusa2 import Backbone


def save_backbone(folder: Path, backbone: Backbone, original: Checkpoint, dtype: torch.dtype = torch.float16) -> None:
    """Everything that is needed to load it as a target; what was not tuned is the original's."""
    weights = dict(original.weights)
    weights |= {f"model.{name}": tensor for name, tensor in backbone.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(dtype).cpu().contiguous() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = model_settings(original.config) | {"eos_token_id": sorted(original.tokenizer.eos_ids)}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    original.tokenizer.save(folder)


def model_settings(config: ModelConfig) -> dict[str, Any]:
    """config.json of a plain Llama of this shape."""
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_len,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }
    return settings | rope_settings(config)


def rope_settings(config: ModelConfig) -> dict[str, Any]:
    """Llama 3.1's scaled positions, where the model has them."""
    if config.rope_scaling is None:
        return {}
    scaling = config.rope_scaling
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context_len,
        }
    }
