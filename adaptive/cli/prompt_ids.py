"""transformers' own greedy `generate` on the same weights, as an arm of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaptive.benchmark import PeerArm, PromptItem
from adaptive.cli.options import EngineOptions
from adaptive.cli.render import Steps
from adaptive.cli.session import TextCodec, TextEngine
from adaptive.requests import Prompt


def transformers_arm(engine: TextEngine, wanted: EngineOptions, ignore_eos: bool) -> PeerArm:
    """Loads the model a second time, in the engine's dtype; batch size 1, prompts tokenised as the engine does."""
    import torch

    from adaptive.peers import load_transformers
    from engine.models.source import open_model

    with Steps("loading transformers' model") as steps:
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted.dtype]
        model: Any = load_transformers(open_model(wanted.model, wanted.revision).load(dtype, steps.reached))
        model.to(wanted.device)

    def generate(item: PromptItem, max_tokens: int) -> Sequence[int]:
        prompt = torch.tensor([token_ids(engine.tokenizer, item.prompt)], device=wanted.device)
        least = max_tokens if ignore_eos else None
        with torch.inference_mode():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=max_tokens,
                min_new_tokens=least,
            )
        answer: list[int] = output[0, prompt.shape[1] :].tolist()
        return answer

    return PeerArm("transformers", generate)


def token_ids(codec: TextCodec, prompt: Prompt) -> list[int]:
    """What the engine makes of a prompt: text, messages through the chat template, or ids as they are."""
    if isinstance(prompt, str):
        return codec.encode(prompt)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) == len(prompt):
        return ids
    return codec.encode(codec.apply_chat([message for message in prompt if not isinstance(message, int)]))
