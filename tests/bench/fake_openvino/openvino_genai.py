"""Stands in for the pipeline: it answers with the prompt, over and over; with prompt lookup, with its parameters."""

from __future__ import annotations

from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any


class GenerationConfig(SimpleNamespace):
    """Takes every attribute."""


class SchedulerConfig(SimpleNamespace):
    """Takes every attribute, too."""


class TokenizedInputs:
    def __init__(self, input_ids: Any, attention_mask: Any) -> None:
        self.input_ids, self.attention_mask = input_ids, attention_mask


class LLMPipeline:
    def __init__(self, folder: str, device: str, scheduler_config: SchedulerConfig, **settings: Any) -> None:
        assert scheduler_config.enable_prefix_caching is False
        if folder == "missing":
            raise RuntimeError(f"no model in {folder}")
        self._lookup = bool(settings.get("prompt_lookup"))
        print("compiling the model")  # the real one prints, too

    def generate(self, inputs: TokenizedInputs, config: GenerationConfig) -> SimpleNamespace:
        print("generating")
        assert config.do_sample is False
        assert config.ignore_eos == (not config.stop_token_ids)
        tokens = []
        for ids, mask in zip(inputs.input_ids.tolist(), inputs.attention_mask.tolist(), strict=True):
            prompt = [token for token, real in zip(ids, mask, strict=True) if real]
            if not prompt:
                raise ValueError("empty prompt")
            if self._lookup:
                prompt = [config.num_assistant_tokens, config.max_ngram_size]
            tokens.append([*islice(cycle(prompt), config.max_new_tokens)])
        return SimpleNamespace(tokens=tokens)
