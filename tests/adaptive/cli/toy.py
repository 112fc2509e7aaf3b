"""A text engine without a model: it answers every prompt with the prompt itself, in capitals, a character a token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptive.contract import Capabilities, Controller, DrafterCaps, Needs, StepReport, StepView
from adaptive.requests import FinishReason, Messages, Output, Request, RequestId, RequestStats, TokenLogprob

MAX_GAMMA = 8
CONTEXT = 3000


class ToyCodec:
    """One character is one token."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(chr, ids))

    def apply_chat(self, messages: Messages) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@dataclass
class _Row:
    id: RequestId
    request: Request
    answer: list[int]
    row: int
    sent: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    gammas: dict[int, int] = field(default_factory=dict)


class ToyEngine:
    """Accepts at most `stand` drafted tokens a step; with `swaps_tokens` a draft changes the answer."""

    def __init__(self, max_batch: int = 4, stand: int = 2, *, swaps_tokens: bool = False) -> None:
        self.tokenizer = ToyCodec()
        self.prompts: list[str] = []
        self.seeds: list[int | None] = []
        self._max_batch = max_batch
        self._stand = stand
        self._swaps = swaps_tokens
        self._controller: Controller | None = None
        self._rows: list[_Row] = []
        self._waiting: list[_Row] = []
        self._step = 0

    def describe(self) -> Mapping[str, object]:
        return {"model": "toy"}

    def capabilities(self) -> Capabilities:
        return Capabilities(
            gammas=tuple(range(MAX_GAMMA + 1)),
            batch_buckets=(1, 2, 4),
            drafters={"ngram": DrafterCaps("ngram", MAX_GAMMA)},
        )

    def attach(self, controller: Controller) -> None:
        self._controller = controller
        self.prepare(controller.attach(self.capabilities()))

    def prepare(self, needs: Needs) -> None:
        assert all(0 in gammas for gammas in needs.gammas.values())

    def submit(self, request: Request) -> RequestId:
        text = self._text(request)
        if len(text) > CONTEXT:
            raise ValueError(f"the prompt has {len(text)} tokens and the context {CONTEXT}")
        self.prompts.append(text)
        self.seeds.append(request.sampling.seed)
        answer = self.tokenizer.encode(text.upper())[: request.sampling.max_tokens]
        self._waiting.append(_Row(f"r{len(self.prompts)}", request, answer, row=-1))
        return self._waiting[-1].id

    def _text(self, request: Request) -> str:
        prompt = request.prompt
        if isinstance(prompt, str):
            return prompt
        if all(isinstance(token, int) for token in prompt):
            return self.tokenizer.decode([token for token in prompt if isinstance(token, int)])
        return self.tokenizer.apply_chat([message for message in prompt if not isinstance(message, int)])

    def cancel(self, request: RequestId) -> None:
        self._waiting = [row for row in self._waiting if row.id != request]
        self._rows = [row for row in self._rows if row.id != request]

    def step(self) -> Sequence[Output]:
        assert self._controller is not None
        self._admit()
        if not self._rows:
            return []
        view = self._view()
        gamma = self._controller.plan(view).gamma
        accepted = [min(gamma, self._stand, len(row.answer) - row.sent - 1) for row in self._rows]
        outputs = [self._advance(row, gamma, count) for row, count in zip(self._rows, accepted, strict=True)]
        emitted = np.array([len(output.tokens) for output in outputs])
        drafted = np.full(len(self._rows), gamma)
        live = np.ones(len(self._rows), bool)
        self._controller.report(
            StepReport(self._step, gamma, view.rows, live, drafted, drafted, np.array(accepted), emitted, step_s=0.01)
        )
        self._step += 1
        ended = [row for row, output in zip(self._rows, outputs, strict=True) if output.finished]
        self._rows = [row for row in self._rows if row not in ended]
        self._controller.forget([row.row for row in ended])
        return outputs

    def _admit(self) -> None:
        used = {row.row for row in self._rows}
        for free in sorted(set(range(self._max_batch)) - used)[: len(self._waiting)]:
            row = self._waiting.pop(0)
            row.row = free
            self._rows.append(row)

    def _view(self) -> StepView:
        return StepView(
            step=self._step,
            known_step=self._step - 1,
            now=0.01 * self._step,
            num_decode=len(self._rows),
            rows=np.array([row.row for row in self._rows]),
            context_lens=np.array([row.sent + 1 for row in self._rows]),
            emitted=np.array([row.sent for row in self._rows]),
        )

    def _advance(self, row: _Row, gamma: int, accepted: int) -> Output:
        tokens = row.answer[row.sent : row.sent + accepted + 1]
        if self._swaps and accepted:
            tokens[0] = ord("?")
        row.sent += len(tokens)
        row.steps += 1
        row.drafted += gamma
        row.accepted += accepted
        row.gammas[gamma] = row.gammas.get(gamma, 0) + 1
        reason: FinishReason | None = "length" if row.sent == len(row.answer) else None
        wanted = row.request.sampling.logprobs
        return Output(
            row.id,
            tuple(tokens),
            self.tokenizer.decode(tokens),
            finish_reason=reason,
            logprobs=None if wanted is None else tuple(TokenLogprob(one, -0.5, ((one, -0.5),)) for one in tokens),
            stats=self._stats(row) if reason else None,
        )

    def _stats(self, row: _Row) -> RequestStats:
        return RequestStats(
            prompt_tokens=len(row.answer),
            tokens=row.sent,
            ttft_ms=10.0,
            tpot_ms=5.0,
            steps=row.steps,
            drafted=row.drafted,
            accepted=row.accepted,
            gamma_histogram=row.gammas,
            drafted_by_position=(row.steps,) * max(row.gammas),
            accepted_by_position=(row.steps,) * min(max(row.gammas), self._stand),
        )
