"""One request's life on the host: its tokens, where its text ends, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adaptive.requests import FinishReason, Output, Request, RequestId, RequestStats, TokenLogprob
from engine.stop import StopText


class TextStream(Protocol):
    """Turns tokens into text as they arrive (`engine.tokenizer.Detokenizer`)."""

    def push(self, ids: Sequence[int]) -> str: ...
    def flush(self) -> str: ...


class NoText:
    """For models without a tokenizer: token ids only."""

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(slots=True, eq=False)
class RequestState:
    """A submitted request. `budget` is `max_tokens`, or less where the row's context would overflow.

    All that decides how it goes on lives here, not in its row: a request that loses its row takes up where it was.
    """

    id: RequestId
    request: Request
    prompt: list[int]
    budget: int
    submitted_at: float
    stop_ids: frozenset[int]
    detokenizer: TextStream
    text: StopText
    seed: int = 0
    arrival: int = -1  # counted by the scheduler
    row: int = -1
    seated: bool = False
    resumed: int = 0  # tokens it had emitted when it took its row
    prefilled: int = 0
    cached: int = 0  # tokens whose keys and values a draft model holds
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    steps: int = 0
    gamma_histogram: dict[int, int] = field(default_factory=dict)
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    lossy_accepted: int = 0
    divergence_spent: float = 0.0
    cached_prompt_tokens: int = 0
    prefill_s: float = 0.0
    preemptions: int = 0

    @property
    def goal(self) -> int:
        """Tokens that must be in the cache before it decodes: all it came with but the last, the first root."""
        return len(self.prompt) + self.resumed - 1

    @property
    def decoding(self) -> bool:
        return self.seated and self.prefilled == self.goal

    @property
    def context_len(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def room(self) -> int:
        """Tokens that may be emitted besides the bonus token of the next step."""
        return self.budget - len(self.tokens) - 1

    def all_tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return self.prompt + self.tokens

    def leave_row(self) -> None:
        """Back to waiting: what its row held must be computed again."""
        self.row, self.seated, self.prefilled, self.cached = -1, False, 0, 0
        self.preemptions += 1

    def record(self, gamma: int, verified: Sequence[int], accepted: int) -> None:
        """One decode step's draft counts; `verified` per position: one each, but in a tree."""
        self.steps += 1
        self.gamma_histogram[gamma] = self.gamma_histogram.get(gamma, 0) + 1
        missing = len(verified) - len(self.drafted_by_position)
        if missing > 0:
            self.drafted_by_position.extend([0] * missing)
            self.accepted_by_position.extend([0] * missing)
        for position, count in enumerate(verified):
            self.drafted_by_position[position] += count
            self.accepted_by_position[position] += position < accepted

    def spend(self, lossy_accepted: int, divergence: float) -> None:
        """What one decode step strayed from the target, by a rule that the request allows."""
        self.lossy_accepted += lossy_accepted
        self.divergence_spent += divergence

    def extend(self, tokens: Sequence[int], now: float, logprobs: Sequence[TokenLogprob] | None) -> Output:
        """Take a step's tokens up to the first that ends the request: a stop token, a stop string, or the budget."""
        if not self.tokens:
            self.first_token_at = now
        self.last_token_at = now
        before, pieces = len(self.tokens), []
        for token in tokens:
            self.tokens.append(token)
            if token in self.stop_ids:
                self.finish_reason = "stop"
                break
            pieces.append(self.text.push(self.detokenizer.push([token])))
            if self.text.stopped:
                self.finish_reason = "stop"
                break
            if len(self.tokens) == self.budget:
                self.finish_reason = "length"
                break
        if self.finish_reason is not None:
            pieces.append(self.text.push(self.detokenizer.flush()) + self.text.flush())
        new = tuple(self.tokens[before:])
        kept = None if logprobs is None else tuple(logprobs[: len(new)])
        return self.output(new, "".join(pieces), kept)

    def cancel(self) -> Output:
        self.finish_reason = "cancelled"
        return self.output((), self.text.push(self.detokenizer.flush()) + self.text.flush(), None)

    def output(self, tokens: tuple[int, ...], text: str, logprobs: tuple[TokenLogprob, ...] | None) -> Output:
        stats = None if self.finish_reason is None else self.stats()
        return Output(self.id, tokens, text, self.finish_reason, logprobs, stats)

    def stats(self) -> RequestStats:
        count = len(self.tokens)
        span = self.last_token_at - self.first_token_at
        return RequestStats(
            prompt_tokens=len(self.prompt),
            tokens=count,
            ttft_ms=1e3 * (self.first_token_at - self.submitted_at) if count else float("nan"),
            tpot_ms=1e3 * span / (count - 1) if count > 1 else 0.0,
            steps=self.steps,
            drafted=sum(self.drafted_by_position),
            accepted=sum(self.accepted_by_position),
            gamma_histogram=dict(self.gamma_histogram),
            drafted_by_position=tuple(self.drafted_by_position),
            accepted_by_position=tuple(self.accepted_by_position),
            lossy_accepted=self.lossy_accepted,
            divergence_spent=self.divergence_spent,
            cached_prompt_tokens=self.cached_prompt_tokens,
            prefill_ms=1e3 * self.prefill_s,
            preemptions=self.preemptions,
        )
