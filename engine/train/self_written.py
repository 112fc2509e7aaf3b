"""Text that the target writes itself: questions of its own and ours, and its answers to them, round by round."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.train.asks.ask import Ask, Guard
from engine.train.asks.chat import opening
from engine.train.asks.code import code_ask, source_text
from engine.train.asks.edits import edit_ask
from engine.train.asks.snippets import PROSE_SIZE, Paragraph, Snippets
from engine.train.asks.templates import Turn
from engine.train.corpus import Document, is_held_out
from engine.train.teacher import Teacher
from engine.train.writer import Prompt, Writer

SHARES = {"chat": 0.45, "code": 0.2, "edit": 0.27, "text": 0.08}
TEMPERATURES = (0.6, 1.0)  # of sampled answers, uniformly between; asks that are held out are answered greedily
GREEDY_SHARE = 0.5
TURN_TOKENS = 64
MOST_OWN = 4000  # paragraphs remembered for edit tasks


@dataclass
class SelfWritten:
    """A source of documents without end. The same seed gives the same ones, on the same device."""

    teacher: Teacher
    writer: Writer
    snippets: Snippets
    guard: Guard
    seed: int = 0
    answer_tokens: int = 256
    prompt_tokens: int = 448
    turns: list[str] = field(default_factory=list)
    own: list[Paragraph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._turn = Turn.of(self.teacher.tokenizer)

    def round(self, count: int) -> list[Document]:
        """About `count` documents; asks that the guard refuses or that are too long are left out."""
        asks = [ask for ask in self._asks(count) if self.guard.admits(ask.text)]
        documents = self.answer(asks, [self._temperature(ask) for ask in asks])
        self._remember(documents)
        return [document for _, document in documents]

    def answer(self, asks: Sequence[Ask], temperatures: Sequence[float]) -> list[tuple[Ask, Document]]:
        """The asks that fit, each with its document."""
        encoded = self.teacher.tokenizer.encode_many([self._prompt(ask) for ask in asks])
        fitting = [place for place, ids in enumerate(encoded) if 0 < len(ids) <= self.prompt_tokens]
        prompts = [Prompt(encoded[place], temperatures[place]) for place in fitting]
        answers = self.writer.write(prompts, self.answer_tokens)
        return [
            (asks[place], _document(asks[place], prompt, answer))
            for place, prompt, answer in zip(fitting, prompts, answers, strict=True)
            if answer
        ]

    def _asks(self, count: int) -> list[Ask]:
        rng = self._rng
        wanted = rng.choices(list(SHARES), list(SHARES.values()), k=count)
        if (lacking := wanted.count("chat") - len(self.turns)) > 0:
            self._write_turns(max(lacking, min(self.writer.rows, 2 * lacking)))
        makers: dict[str, Callable[[], Ask | None]] = {
            "chat": self._chat_ask,
            "code": lambda: code_ask(self.snippets, rng),
            "edit": lambda: edit_ask(self.snippets, self.own, rng),
            "text": lambda: source_text(self.snippets, rng),
        }
        return [ask for task in wanted if (ask := makers[task]()) is not None]

    def _chat_ask(self) -> Ask | None:
        if not self.turns:
            return None
        text = self.turns.pop()
        return Ask("chat", text, text)

    def _write_turns(self, count: int) -> None:
        """Let the target write what a user may say."""
        tokenizer = self.teacher.tokenizer
        openings = [opening(self._rng) for _ in range(count)]
        encoded = tokenizer.encode_many([self._turn.before + text for text in openings])
        prompts = [Prompt(ids, 1.0) for ids in encoded]
        written = self.writer.write(prompts, TURN_TOKENS)
        texts = [begin + tokenizer.decode(ids) for begin, ids in zip(openings, written, strict=True)]
        self.turns += [clean for text in texts if len(clean := text.strip()) >= 12]

    def _temperature(self, ask: Ask) -> float:
        greedy = self._rng.random() < GREEDY_SHARE
        temperature = self._rng.uniform(*TEMPERATURES)
        return 0.0 if greedy or is_held_out(ask.source) else temperature

    def _prompt(self, ask: Ask) -> str:
        return ask.text if ask.raw else self._turn.around(ask.text)

    def _remember(self, documents: Sequence[tuple[Ask, Document]]) -> None:
        """Paragraphs of chat answers become texts to edit."""
        for ask, document in documents:
            if ask.task == "chat" and self._rng.random() < 0.3:
                text = self.teacher.tokenizer.decode(document.ids[document.answer_start :])
                parts = [part.strip() for part in re.split(r"\n\s*\n", text)]
                fitting = [part for part in parts if PROSE_SIZE[0] <= len(part) <= PROSE_SIZE[1]]
                self.own += [Paragraph(part, ask.source) for part in fitting]
        self._rng.shuffle(self.own)
        del self.own[MOST_OWN:]


def _document(ask: Ask, prompt: Prompt, answer: list[int]) -> Document:
    ids = np.array([*prompt.ids, *answer], dtype=np.int32)
    return Document(ids, len(prompt.ids), ask.task, prompt.temperature == 0, is_held_out(ask.source))
