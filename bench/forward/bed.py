"""An engine made ready for one verify forward of any shape, again and again.

The rows hold what a running engine's would: tokens, a filled cache, proposals. Only who put them there differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.forward.floors import Work, verify_work
from engine import EngineConfig, LLMEngine
from engine.drafters import NgramDrafter
from engine.models.decoder import Decoder
from engine.step import StepKey


@dataclass(frozen=True, slots=True)
class Point:
    """One shape: row b verifies `tokens[b]` tokens, root included, on a grid `width` tokens wide.

    `context` is the context bucket, and full: the longest row's last token is the bucket's last position.
    """

    tokens: tuple[int, ...]
    width: int
    context: int

    @classmethod
    def rectangle(cls, batch: int, tokens: int, context: int) -> Point:
        return cls((tokens,) * batch, tokens, context)

    @classmethod
    def ragged(cls, batch: int, total: int, width: int, context: int) -> Point:
        """The most unequal lengths: the first rows full, the last ones but a root.

        >>> Point.ragged(4, 10, 5, 64).tokens
        (5, 3, 1, 1)
        """
        if not batch <= total <= batch * width:
            raise ValueError(f"total={total} must be from batch={batch} to batch · width = {batch * width}")
        left, tokens = total - batch, []
        for _ in range(batch):
            more = min(left, width - 1)
            tokens.append(1 + more)
            left -= more
        return cls(tuple(tokens), width, context)

    @property
    def key(self) -> StepKey:
        return StepKey(len(self.tokens), self.width - 1, sum(self.tokens), self.context)

    @property
    def length(self) -> int:
        """Tokens that every row holds, root included."""
        return self.context - self.width + 1


class Bed:
    """Rows, cache and pieces for points of at most `config.max_batch` rows and `config.max_gamma + 1` tokens a row."""

    def __init__(self, decoder: Decoder, config: EngineConfig) -> None:
        self.config, self.model = config, decoder.config
        self._engine = LLMEngine(decoder, config, drafter=NgramDrafter(config))
        generator = torch.Generator(config.device).manual_seed(0)
        state, kv = self._engine.state, self._engine.kv
        for half in (*kv.keys, *kv.values):
            # A cache of untouched zeros is no cache: all its pages may be one and the same in the processor's cache.
            half.normal_(generator=generator)
        for tokens in (state.history_RP, state.drafts_RM):
            tokens.random_(self.model.vocab_size, generator=generator)

    @property
    def pieces(self) -> int:
        """Pieces captured so far."""
        return self._engine.runner.num_captured

    def work(self, point: Point) -> Work:
        lens = [point.length] * len(point.tokens)
        return verify_work(self.model, self.config.torch_dtype.itemsize, lens, point.tokens)

    def aim(self, point: Point) -> Callable[[], None]:
        """Set every row as the point has it; returns the piece to run. RuntimeError where the rows do not take it."""
        state, backend, batch = self._engine.state, self._engine.runner.backend, len(point.tokens)
        drafts = [tokens - 1 for tokens in point.tokens]
        values: tuple[tuple[torch.Tensor, list[int]], ...] = (
            (state.lens_R, [point.length] * batch),
            (state.live_R, [1] * batch),
            (state.budget_R, [state.capacity] * batch),
            (state.draft_cap_R, [state.max_gamma] * batch),
            (state.draft_lens_R, drafts),
        )
        for buffer, value in values:
            backend.write(buffer[:batch], value)
        found = backend.read(state.available(batch)).tolist()
        if found != drafts:
            raise RuntimeError(f"the rows were to verify {drafts} draft tokens, and would verify {found}")
        return self._engine.runner.bundle(point.key).verify
