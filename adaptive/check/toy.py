"""A whole engine without a model, for tests of policies and controllers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptive.contract import Capabilities, Controller, Decision, DrafterCaps, Needs, StepReport, StepView
from adaptive.requests import FinishReason, Output, Request, RequestId, RequestStats

VOCABULARY = 251
STEP_S = 1e-3


@dataclass(slots=True)
class _Running:
    id: RequestId
    request: Request
    tokens: list[int]
    start: int
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    gammas: Counter[int] = field(default_factory=Counter)

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.start

    @property
    def left(self) -> int:
        return self.request.sampling.max_tokens - self.emitted

    def stats(self) -> RequestStats:
        return RequestStats(
            self.start, self.emitted, 0.0, 0.0, self.steps, self.drafted, self.accepted, dict(self.gammas)
        )


class ToyEngine:
    """Its language is a fixed function of the last token and the position, its drafter right with chance `skill`.

    Prompts are token ids; decoding is greedy. Reports come `lag` steps late and decisions act `delay` steps late, as
    in engines that overlap host and device. Time is simulated: a step takes a millisecond.
    """

    def __init__(
        self,
        *,
        gammas: Sequence[int] = (0, 1, 2, 3, 4, 6, 8),
        max_batch: int = 4,
        skill: float = 0.7,
        lag: int = 0,
        delay: int = 0,
        seed: int = 0,
    ) -> None:
        buckets = tuple(sorted({*(2**power for power in range(max_batch.bit_length())), max_batch}))
        drafters = {"toy": DrafterCaps("ngram", max_gamma=max(gammas))}
        self._caps = Capabilities(tuple(gammas), buckets, drafters, lag=lag, delay=delay)
        self._skill = skill
        self._rng = np.random.default_rng(seed)
        self._controller: Controller | None = None
        self.prepared: list[Needs] = []
        self._waiting: deque[_Running] = deque()
        self._rows: dict[int, _Running] = {}
        self._free = list(range(max_batch))
        self._ended: list[tuple[int, int]] = []
        self._cancelled: list[Output] = []
        self._reports: deque[StepReport] = deque()
        self._decisions: deque[Decision] = deque()
        self._step = 0
        self._known = -1
        self._submitted = 0

    def capabilities(self) -> Capabilities:
        return self._caps

    def attach(self, controller: Controller) -> None:
        self.prepare(controller.attach(self._caps))
        self._controller = controller
        self._decisions = deque([Decision(0)] * self._caps.delay)

    def prepare(self, needs: Needs) -> None:
        self.prepared.append(needs)

    def submit(self, request: Request) -> RequestId:
        tokens = [token for token in request.prompt if isinstance(token, int)]
        if not tokens or len(tokens) != len(request.prompt):
            raise ValueError(f"prompt={request.prompt!r} is not valid here: give at least one token id")
        name = request.id or f"toy-{self._submitted}"
        self._submitted += 1
        self._waiting.append(_Running(name, request, tokens, len(tokens)))
        return name

    def cancel(self, request: RequestId) -> None:
        for running in [running for running in self._waiting if running.id == request]:
            self._waiting.remove(running)
            self._cancelled.append(_output(running, (), "cancelled"))
        for row, running in [(row, running) for row, running in self._rows.items() if running.id == request]:
            self._end(row)
            self._cancelled.append(_output(running, (), "cancelled"))

    def step(self) -> Sequence[Output]:
        assert self._controller is not None, "attach a controller first"
        outputs, self._cancelled = self._cancelled, []
        while self._waiting and self._free:
            self._rows[self._free.pop(0)] = self._waiting.popleft()
        if not self._rows:
            self._deliver(self._controller, self._step)
            return outputs
        self._decisions.append(self._controller.plan(self._view()))
        outputs += self._run(self._decisions.popleft().gamma)
        self._deliver(self._controller, self._step - self._caps.lag)
        self._step += 1
        return outputs

    def _view(self) -> StepView:
        running = list(self._rows.values())
        return StepView(
            step=self._step,
            known_step=self._known,
            now=self._step * STEP_S,
            num_decode=len(running),
            rows=np.array(list(self._rows), np.int64),
            context_lens=np.array([len(one.tokens) for one in running], np.int64),
            emitted=np.array([one.emitted for one in running], np.int64),
            num_waiting=len(self._waiting),
            may_speculate=np.array([one.request.speculation for one in running]),
        )

    def _run(self, gamma: int) -> list[Output]:
        rows = list(self._rows)
        drafted = np.zeros(len(rows), np.int64)
        accepted = np.zeros(len(rows), np.int64)
        outputs = []
        for place, row in enumerate(rows):
            running = self._rows[row]
            width = min(gamma, running.left - 1) if running.request.speculation else 0
            wrong = np.flatnonzero(self._rng.random(width) >= self._skill)
            drafted[place], accepted[place] = width, wrong[0] if len(wrong) else width
            outputs.append(self._emit(row, running, gamma, width, int(accepted[place])))
        live = np.ones(len(rows), np.bool_)
        self._reports.append(
            StepReport(self._step, gamma, np.array(rows), live, drafted, drafted, accepted, accepted + 1, step_s=STEP_S)
        )
        return outputs

    def _emit(self, row: int, running: _Running, gamma: int, drafted: int, accepted: int) -> Output:
        new: list[int] = []
        for _ in range(accepted + 1):
            new.append((running.tokens[-1] * 75 + len(running.tokens) * 31 + 74) % VOCABULARY)
            running.tokens.append(new[-1])
        running.steps += 1
        running.drafted += drafted
        running.accepted += accepted
        running.gammas[gamma] += 1
        if running.left == 0:
            self._end(row)
        return _output(running, tuple(new), None if running.left else "length")

    def _end(self, row: int) -> None:
        del self._rows[row]
        self._ended.append((row, self._step))

    def _deliver(self, controller: Controller, newest: int) -> None:
        """Deliver reports up to step `newest`, then the rows that no later report will name."""
        while self._reports and self._reports[0].step <= newest:
            report = self._reports.popleft()
            self._known = report.step
            controller.report(report)
        done = [row for row, step in self._ended if step <= newest]
        if done:
            controller.forget(done)
            self._ended = [(row, step) for row, step in self._ended if step > newest]
            self._free += done


def _output(running: _Running, tokens: tuple[int, ...], reason: FinishReason | None) -> Output:
    text = "".join(f"{token} " for token in tokens)
    return Output(running.id, tokens, text, reason, stats=running.stats() if reason else None)
