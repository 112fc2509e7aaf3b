"""Other people's implementations of the same model, to check against and to be measured beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_transformers(checkpoint: Checkpoint, attention: str = "sdpa") -> PreTrainedModel:
    """The checkpoint as a transformers model, ready for `generate`; it shares the checkpoint's weights in memory.

    `attention` is transformers' name of an implementation (`sdpa`, `eager`).
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'adaptive-speculation[engine,peers]'") from error
    weights = dict(checkpoint.weights)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    settings = transformers.AutoConfig.for_model(**_settings(checkpoint.config))
    build: Any = transformers.AutoModelForCausalLM.from_config  # it has no type hints
    with torch.device("meta"):
        model: Any = build(settings, dtype=weights["lm_head.weight"].dtype, attn_implementation=attention)
    model.load_state_dict(weights, assign=True)
    # Rotary frequencies are in no checkpoint: made anew where the weights are.
    model.model.rotary_emb = type(model.model.rotary_emb)(settings)
    eos = sorted(checkpoint.tokenizer.eos_ids)
    model.generation_config.eos_token_id = eos
    model.generation_config.pad_token_id = eos[0] if eos else 0
    peer: PreTrainedModel = model.eval()
    return peer


def _settings(config: ModelConfig) -> dict[str, Any]:
    """Keyword arguments of transformers' config; the family is the one that has this variant."""
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
        "rope_parameters": _rope(config),
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


def _rope(config: ModelConfig) -> dict[str, Any]:
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
