"""A client of an `AdaptiveController`: submits requests, steps until all are answered, stamps what arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from adaptive.benchmark.prompts import PromptItem
from adaptive.controller import AdaptiveController
from adaptive.requests import FinishReason, Output, RequestId, RequestStats, Sampling, TokenLogprob


class PromptError(ValueError):
    """The engine does not take a prompt; the message names it."""


@dataclass(slots=True)
class Answer:
    """What came back for one prompt. `stamps` are the client's clock at each output that brought tokens, in seconds."""

    item: PromptItem
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stats: RequestStats | None = None

    @property
    def itl_ms(self) -> list[float]:
        """Gaps between successive chunks, milliseconds; a chunk holds all tokens of one step."""
        return [1e3 * (late - early) for early, late in zip(self.stamps, self.stamps[1:], strict=False)]

    def add(self, output: Output, now: float) -> None:
        if output.tokens:
            self.stamps.append(now)
        self.tokens.extend(output.tokens)
        self.text += output.text
        self.logprobs.extend(output.logprobs or ())
        if output.finish_reason is not None:
            self.finish_reason, self.stats = output.finish_reason, output.stats


Listener = Callable[[Answer, Output], None]
"""Called at every output, after it was added to its answer."""


def ask(
    controller: AdaptiveController,
    items: Sequence[PromptItem],
    sampling: Sampling,
    listener: Listener | None = None,
    concurrency: int | None = None,
    *,
    allow_lossy: bool = False,
) -> list[Answer]:
    """All answers, in the order of `items`. Request i samples with `sampling.seed + i`, so equal prompts may differ.

    A prompt's task is the SLO class of its request.

    At most `concurrency` requests are in flight (None: all at once, and the engine queues them). PromptError for a
    prompt that the engine does not take, such as one longer than the context; its other errors pass through.
    """
    answers = [Answer(item) for item in items]
    waiting = deque(enumerate(answers))
    running: dict[RequestId, Answer] = {}
    try:
        while waiting or running:
            while waiting and (concurrency is None or len(running) < concurrency):
                index, answer = waiting.popleft()
                running[_submit(controller, answer.item, sampling, index, allow_lossy)] = answer
            outputs = controller.step()
            now = perf_counter()
            for output in outputs:
                answer = running.pop(output.request_id) if output.finished else running[output.request_id]
                answer.add(output, now)
                if listener is not None:
                    listener(answer, output)
    finally:
        for request in running:
            controller.cancel(request)
    return answers


def _submit(
    controller: AdaptiveController, item: PromptItem, sampling: Sampling, index: int, allow_lossy: bool
) -> RequestId:
    seeded = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index)
    try:
        return controller.submit(item.prompt, seeded, slo_class=item.task, allow_lossy=allow_lossy)
    except ValueError as error:
        raise PromptError(f"prompt {item.id!r}: {error}") from error
