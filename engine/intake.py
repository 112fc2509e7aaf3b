"""From what a user asks for to a request that the engine can serve, or an error that says what is wrong with it."""

from __future__ import annotations

import random

import numpy as np

from adaptive.requests import Request, RequestId
from engine.request_state import NoText, RequestState
from engine.stop import StopText
from engine.tokenizer import Detokenizer, Tokenizer


class Intake:
    """Knows the limits that every request must keep: a row's context and the vocabulary."""

    def __init__(self, context_len: int, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        self._context_len = context_len
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError("this engine was built without a tokenizer: give prompts as token ids")
        return self._tokenizer

    def accept(self, request: Request, request_id: RequestId, now: float) -> RequestState:
        """ValueError for what can not be served, with the fix. A seed that was not given is drawn here, once."""
        prompt = self._encode(request)
        sampling = request.sampling
        stop_ids = frozenset(sampling.stop_token_ids)
        if self._tokenizer is not None and not sampling.ignore_eos:
            stop_ids |= self._tokenizer.eos_ids
        if sampling.stop and self._tokenizer is None:
            raise ValueError(f"stop={sampling.stop!r} needs a tokenizer: use stop_token_ids")
        return RequestState(
            id=request_id,
            request=request,
            prompt=prompt,
            budget=min(sampling.max_tokens, self._context_len - len(prompt)),
            submitted_at=now,
            stop_ids=stop_ids,
            detokenizer=Detokenizer(self._tokenizer) if self._tokenizer else NoText(),
            text=StopText(sampling.stop),
            seed=random.getrandbits(63) if sampling.seed is None else sampling.seed,
        )

    def _encode(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif all(isinstance(part, int | np.integer) for part in prompt):
            ids = [int(part) for part in prompt]  # type: ignore[arg-type]
        else:
            ids = self.tokenizer.encode(self.tokenizer.apply_chat(prompt))  # type: ignore[arg-type]
        limit = self._context_len - 1
        if not 1 <= len(ids) <= limit:
            fix = "give at least one token" if not ids else "shorten it or raise context_len"
            raise ValueError(
                f"the prompt has {len(ids)} tokens and must have 1 to {limit} (one is left to answer): {fix}"
            )
        outside = [token for token in ids if not 0 <= token < self._vocab_size]
        if outside:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {self._vocab_size}")
        return ids
