"""What training asks of a trainable drafter, whatever its kind.

Shapes: B sequences, T tokens, E hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from engine.train.lesson import Lesson
from engine.train.teacher import Features


class TrainableDrafter(nn.Module, ABC):
    """A drafter that recomputes whole sequences.

    `method` is its name on the command line, `taps` the target's layers it reads, `depth` how many steps it is trained
    through (a draft model needs one: its steps are all alike). Parameters whose names begin as in `slow` take that part
    of the step size.
    """

    method: str
    taps: tuple[int, ...] = ()
    depth: int = 1
    guess_weight: float = 1.0
    slow: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def outputs(self, lesson: Lesson, depth: int) -> list[Tensor]:
        """Per step s `[B, T, E]`: at place t what the target's head turns into chain t's guess of token t + 2 + s.

        As if all guesses before it had been right: the true tokens are fed.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What its file holds, under the names of that file's format."""

    @abstractmethod
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave. RuntimeError where names or shapes differ."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What its config.json says beyond the target's sizes."""

    def extra_loss(self, lesson: Lesson, outputs: list[Tensor]) -> Tensor | None:
        """What is to be learnt beside the target's tokens."""
        return None

    def begin(self, features: Features) -> None:
        """See some features before the first step, to start at their scale."""
