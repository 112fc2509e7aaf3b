"""An engine of your own under adaptive control: all it takes is the six methods of `adaptive.Engine`.

This one decodes one request at a time. Its language is a fixed rule over integers and its drafter guesses that rule
right three times in four; put your model in the place of `next_token` and `draft`. Run: python examples/own_engine.py
"""

from collections import deque
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from adaptive import AdaptiveController, Capabilities, Needs, Output, Request, Sampling, StepReport, StepView
from adaptive.contract import Controller, DrafterCaps
from policies import EmaTiers

ROWS = np.array([0])


def next_token(tokens: Sequence[int]) -> int:
    return (31 * tokens[-1] + 17 * len(tokens)) % 101


def draft(tokens: Sequence[int], gamma: int, rng: np.random.Generator) -> list[int]:
    guess = list(tokens)
    for _ in range(gamma):
        guess.append(next_token(guess) if rng.random() < 0.75 else 0)
    return guess[len(tokens) :]


class OwnEngine:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.queue: deque[tuple[str, Request, list[int]]] = deque()
        self.cancelled: list[Output] = []
        self.steps = 0
        self.submitted = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(gammas=(0, 1, 2, 3, 4, 6, 8), batch_buckets=(1,), drafters={"own": DrafterCaps("lm", 8)})

    def attach(self, controller: Controller) -> None:
        self.controller = controller
        self.prepare(controller.attach(self.capabilities()))

    def prepare(self, needs: Needs) -> None:
        """A real engine captures its CUDA graphs here: those of `needs.gammas` and no others."""

    def submit(self, request: Request) -> str:
        self.submitted += 1
        name = request.id or f"request-{self.submitted}"
        self.queue.append((name, request, []))
        return name

    def cancel(self, request: str) -> None:
        for entry in [entry for entry in self.queue if entry[0] == request]:
            self.queue.remove(entry)
            self.cancelled.append(Output(request, (), "", "cancelled"))
            self.controller.forget([0] if entry[2] else [])

    def step(self) -> list[Output]:
        outputs, self.cancelled = self.cancelled, []
        if not self.queue:
            return outputs
        name, request, answer = self.queue[0]
        tokens = [token for token in request.prompt if isinstance(token, int)] + answer
        left = request.sampling.max_tokens - len(answer)
        context_lens, emitted = np.array([len(tokens)]), np.array([len(answer)])
        view = StepView(self.steps, self.steps - 1, perf_counter(), 1, ROWS, context_lens, emitted)
        gamma = self.controller.plan(view).gamma

        drafted = draft(tokens, min(gamma, left - 1) if request.speculation else 0, self.rng)
        new = [next_token(tokens)]
        while len(new) <= len(drafted) and drafted[len(new) - 1] == new[-1]:
            new.append(next_token(tokens + new))
        answer += new

        width, count, live = np.array([len(drafted)]), np.array([len(new)]), np.array([True])
        self.controller.report(StepReport(self.steps, gamma, ROWS, live, width, width, count - 1, count))
        self.steps += 1
        done = len(answer) == request.sampling.max_tokens
        if done:
            self.queue.popleft()
            self.controller.forget([0])
        return [*outputs, Output(name, tuple(new), " ".join(map(str, new)), "length" if done else None)]


def main() -> None:
    controller = AdaptiveController(OwnEngine(), policy=EmaTiers())
    answers = controller.generate([[1, 2, 3], [4, 5, 6]], Sampling(max_tokens=200))
    stats = controller.stats()
    print(f"{sum(len(answer.tokens) for answer in answers)} tokens in {stats.steps} steps: τ = {stats.tau:.2f}")
    for gamma, steps in stats.gamma_histogram.items():
        print(f"γ = {gamma}: {steps:4d} steps {'#' * (steps // 4)}")


if __name__ == "__main__":
    main()
