"""Prompts as token ids, for those who take nothing else."""

from __future__ import annotations

from adaptive.cli.session import TextCodec
from adaptive.requests import Prompt


def token_ids(codec: TextCodec, prompt: Prompt) -> list[int]:
    """What the engine makes of a prompt: text, messages through the chat template, or ids as they are."""
    if isinstance(prompt, str):
        return codec.encode(prompt)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) == len(prompt):
        return ids
    return codec.encode(codec.apply_chat([message for message in prompt if not isinstance(message, int)]))
