"""What goes into an engine and what comes out: requests, sampling parameters, outputs. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

RequestId = str
FinishReason = Literal["stop", "length", "cancelled"]
Messages = Sequence[Mapping[str, str]]
Prompt = str | Sequence[int] | Messages
"""Raw text, token ids, or chat messages (`{"role": ..., "content": ...}`) for the model's chat template."""

MAX_LOGPROBS = 20
LARGEST = 2**63 - 1  # what a device can hold


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _within(value: Any, most: int) -> bool:
    return _whole(value) and bool(0 <= value <= most)


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens and when to stop.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 filter nothing. The same `seed` gives the same text only while
    γ follows the same course: a decision changes which random number meets which token, never their distribution.
    `seed=None` draws one. `stop` strings are cut from the text; `logprobs=n` reports each token's log-probability
    under the unscaled target distribution and the n most likely alternatives.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            given = getattr(self, name)
            if not isinstance(given, Iterable) or isinstance(given, str | bytes):
                raise ValueError(f"{name}={given!r} is not valid: it must be a list")
            object.__setattr__(self, name, tuple(given))
        temperature = self.temperature
        checks = (
            (_whole(self.max_tokens) and self.max_tokens >= 1, "max_tokens", "at least 1"),
            (_number(temperature) and 0 <= temperature <= 1e30, "temperature", "0 (greedy) or above, to 1e30"),
            (_within(self.top_k, LARGEST), "top_k", "0 (off) or above"),
            (_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (off)"),
            (self.seed is None or _within(self.seed, LARGEST), "seed", "None or from 0 to 2**63 - 1"),
            (all(isinstance(text, str) and text for text in self.stop), "stop", "strings, free of empty strings"),
            (all(map(_whole, self.stop_token_ids)), "stop_token_ids", "whole numbers"),
            (self.logprobs is None or _within(self.logprobs, MAX_LOGPROBS), "logprobs", f"None or 0 to {MAX_LOGPROBS}"),
        )
        for valid, name, expected in checks:
            if not valid:
                raise ValueError(f"{name}={getattr(self, name)!r} is not valid: it must be {expected}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `tpot_slo_ms` is the wished time per output token; `speculation=False` opts out of drafting.

    Of waiting requests the one with the highest `priority` is served first, and of equals the earliest. Where no row is
    free it takes that of a running request of lower priority, which goes on later where it was, its output the same.
    (SGLang's default sense; vLLM serves low numbers first.)
    """

    prompt: Prompt
    sampling: Sampling = Sampling()
    id: RequestId | None = None
    tpot_slo_ms: float | None = None
    slo_class: str | None = None
    allow_lossy: bool = False
    speculation: bool = True
    priority: int = 0

    def __post_init__(self) -> None:
        for name in ("allow_lossy", "speculation"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} is not valid: it must be True or False")
        if not _whole(self.priority):
            raise ValueError(f"priority={self.priority!r} is not valid: it must be a whole number")
        if self.tpot_slo_ms is not None and not self.tpot_slo_ms > 0:
            raise ValueError(f"tpot_slo_ms={self.tpot_slo_ms!r} is not valid: give milliseconds per token above 0")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request's measurements. `accepted` excludes the bonus token; times are milliseconds.

    `ttft_ms` runs from submission to the first token; `tpot_ms` is (last - first token) / (tokens - 1), 0 for one.
    `accepted_by_position[k]` of `drafted_by_position[k]` verified draft tokens at depth k stood.
    `lossy_accepted` of the accepted tokens stood beyond the exact rule and `divergence_spent` says how far that strays
    from the model (docs/acceptance.md); both are 0 where acceptance was exact.
    `cached_prompt_tokens` of the prompt's tokens were found in the cache of an earlier request. `prefill_ms` is what
    reading the prompt took, nan where that is not known. `preemptions` counts how often it had to give up its row.
    """

    prompt_tokens: int
    tokens: int
    ttft_ms: float
    tpot_ms: float
    steps: int
    drafted: int
    accepted: int
    gamma_histogram: Mapping[int, int] = field(default_factory=dict)
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    lossy_accepted: int = 0
    divergence_spent: float = 0.0
    cached_prompt_tokens: int = 0
    prefill_ms: float = math.nan
    preemptions: int = 0

    @property
    def tau(self) -> float:
        """Mean tokens emitted per step, bonus included."""
        return self.tokens / self.steps if self.steps else math.nan

    @property
    def alpha(self) -> float:
        """Share of drafted tokens that were accepted; nan when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else math.nan


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to one request. The last one carries `finish_reason` and `stats`."""

    request_id: RequestId
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    stats: RequestStats | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer, as `generate` returns it."""

    request_id: RequestId
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
