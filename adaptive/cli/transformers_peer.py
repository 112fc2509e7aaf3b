"""transformers' own greedy `generate` on the same weights, plain and with prompt lookup, as arms of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptive.benchmark import PeerArm, PromptItem
from adaptive.cli.options import LOOKUP, PLAIN, EngineOptions
from adaptive.cli.prompt_ids import token_ids
from adaptive.cli.render import Steps
from adaptive.cli.session import TextCodec, TextEngine

LOOKUP_TOKENS = 10


def transformers_arms(
    engine: TextEngine, names: Sequence[str], wanted: EngineOptions, batch: int, *, ignore_eos: bool
) -> list[PeerArm]:
    """Loads the model a second time, in the engine's dtype, once for all `names`."""
    generator = Generator(_load(wanted, ignore_eos=ignore_eos), engine.tokenizer, wanted.device)
    arms = {
        PLAIN: PeerArm(PLAIN, generator, batch),
        LOOKUP: PeerArm(LOOKUP, replace(generator, lookup=LOOKUP_TOKENS), 1, "prompt lookup"),
    }
    return [arms[name] for name in names]


@dataclass(frozen=True)
class Generator:
    """Greedy answers to prompts padded on the left, tokenised as the engine does. `lookup` is prompt lookup's γ."""

    model: Any
    codec: TextCodec
    device: str
    lookup: int | None = None

    def __call__(self, items: Sequence[PromptItem], max_tokens: int) -> list[list[int]]:
        import torch

        prompts = [token_ids(self.codec, item.prompt) for item in items]
        ends = set(self.model.generation_config.eos_token_id or ())
        longest, pad = max(map(len, prompts)), self.model.generation_config.pad_token_id
        padded = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor(padded, device=self.device),
                attention_mask=torch.tensor(mask, device=self.device),
                do_sample=False,
                max_new_tokens=max_tokens,
                prompt_lookup_num_tokens=self.lookup,
            )
        return [up_to_end(answer, ends) for answer in output[:, longest:].tolist()]


def up_to_end(answer: list[int], ends: set[int]) -> list[int]:
    """Without the padding that follows where a neighbour's answer is longer.

    >>> up_to_end([5, 6, 2, 2, 2], {2, 3}), up_to_end([5, 6], {2, 3})
    ([5, 6, 2], [5, 6])
    """
    place = next((place for place, token in enumerate(answer) if token in ends), len(answer))
    return answer[: place + 1]


def _load(wanted: EngineOptions, *, ignore_eos: bool) -> Any:
    import torch

    from adaptive.peers import load_transformers
    from engine.models.source import open_model

    with Steps("loading transformers' model") as steps:
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted.dtype]
        model: Any = load_transformers(open_model(wanted.model, wanted.revision).load(dtype, steps.reached))
        model.to(wanted.device)
    if ignore_eos:
        # A minimum length would forbid the end tokens, and ours may say them and go on.
        model.generation_config.eos_token_id = None
    return model
