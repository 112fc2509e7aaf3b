"""A small draft model without embedding and head of its own: a few layers between its target's.

Shapes: V the target's vocabulary, D the draft vocabulary, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from engine.config import EngineConfig
from engine.drafters.head_format import HeadFormat
from engine.drafters.model import ModelDrafter
from engine.drafters.vocabulary import DraftVocabulary, Target
from engine.models.decoder import Decoder


def small_model_drafter(
    source: HeadFormat, weights: Mapping[str, Tensor], target: Target, config: EngineConfig
) -> ModelDrafter:
    """The drafter that `weights` make, named as in a whole model's file but for the `model.` before them."""
    vocabulary = DraftVocabulary.make(weights, target, source.name)
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    named["model.embed_tokens.weight"] = vocabulary.embedding_VE
    named["lm_head.weight"] = vocabulary.head_rows()
    shape = replace(source.block, tie_embeddings=False)
    decoder = Decoder(shape, named, min(config.context_len, shape.context_len), config.device)
    return ModelDrafter(decoder, config, vocabulary.target_size, same_tokenizer=True, ids_D=vocabulary.ids_D)
