"""Hands each output of a shared engine to whoever waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from adaptive.requests import Completion, Output, RequestId


class Delivery:
    """Outputs of claimed requests go to the claimant's inbox, all others wait to be collected."""

    def __init__(self) -> None:
        self._inboxes: dict[RequestId, deque[Output] | None] = {}
        self._unclaimed: list[Output] = []

    def claim(self, request: RequestId, inbox: deque[Output]) -> None:
        """From now until it has finished, its outputs go to `inbox`."""
        self._inboxes[request] = inbox

    def abandon(self, request: RequestId) -> None:
        """Nobody waits any more: what still comes of it is dropped. One that has finished is forgotten already."""
        if request in self._inboxes:
            self._inboxes[request] = None

    def route(self, outputs: Iterable[Output]) -> None:
        """Sort in what one engine step brought."""
        for output in outputs:
            if output.request_id not in self._inboxes:
                self._unclaimed.append(output)
                continue
            inbox = self._inboxes[output.request_id]
            if inbox is not None:
                inbox.append(output)
            if output.finished:
                del self._inboxes[output.request_id]

    def collect(self) -> list[Output]:
        """Everything unclaimed since the last call, in the order it came."""
        outputs, self._unclaimed = self._unclaimed, []
        return outputs


def completion(outputs: Sequence[Output]) -> Completion:
    """All outputs of one finished request, as one answer."""
    last = outputs[-1]
    assert last.finish_reason is not None, "an answer ends with a finish reason"
    logprobs = [output.logprobs for output in outputs if output.logprobs is not None]
    return Completion(
        request_id=last.request_id,
        text="".join(output.text for output in outputs),
        tokens=tuple(token for output in outputs for token in output.tokens),
        finish_reason=last.finish_reason,
        stats=last.stats,
        logprobs=tuple(entry for entries in logprobs for entry in entries) if logprobs else None,
    )
