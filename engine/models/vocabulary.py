"""Whether two models speak of the same tokens."""

from __future__ import annotations

import re

from engine.models.checkpoint import Checkpoint
from engine.tokenizer import Tokenizer

PADDING = re.compile(r"\[PAD\d+\]")  # how converters to GGUF fill a vocabulary up to the embedding's rows


def same_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """How many token ids, from 0 on, mean the same to both models; what is above is padding of the embeddings.

    Sizes of embeddings may differ, as Qwen's 151936 and 152064 do; tokenizers may not. ValueError names both models
    and the first token that differs.
    """
    ours, theirs = _tokens(target.tokenizer), _tokens(draft.tokenizer)
    if ours != theirs:
        place = min(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        raise ValueError(
            f"{draft.name} can not draft for {target.name}: their tokenizers differ, first at token {place}, which is "
            f"{_shown(theirs, place)} to the one and {_shown(ours, place)} to the other"
        )
    return min(max(ours, default=-1) + 1, target.config.vocab_size, draft.config.vocab_size)


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    vocabulary = tokenizer.vocabulary().items()
    return {token: text for text, token in vocabulary if PADDING.fullmatch(text) is None}


def _shown(tokens: dict[int, str], token: int) -> str:
    return repr(tokens[token]) if token in tokens else "no token"
