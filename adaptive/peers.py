"""Other people's implementations of the same model, to check against and to be measured beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.models.checkpoint import Checkpoint
from engine.models.export import config_json

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
    settings = transformers.AutoConfig.for_model(**config_json(checkpoint.config))
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
