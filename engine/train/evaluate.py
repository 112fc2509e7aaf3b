"""How often a drafter is right, per position and task, on the target's own greedy answers.

α_k is conditional: of the chains whose guesses before step k were all right, the share that is right at step k. As the
text is what the target says greedily, the true tokens can be fed at once. τ walks through an answer as decoding does:
guess, keep what is right, add the target's own token. Shapes: B sequences, T tokens, K steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.train.batches import epoch
from engine.train.corpus import Document
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Batch, Lesson
from engine.train.school import School


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of `chains` chains: `alpha[k]` (nan where no chain got there) and `tau`, tokens per step of the target."""

    alpha: tuple[float, ...]
    tau: float
    chains: int

    def rounded(self) -> dict[str, object]:
        """For JSON: nan becomes None."""
        alpha = [None if np.isnan(rate) else round(rate, 4) for rate in self.alpha]
        return {"alpha": alpha, "tau": None if np.isnan(self.tau) else round(self.tau, 4), "chains": self.chains}


@torch.no_grad()
def right_guesses(drafter: TrainableDrafter, lesson: Lesson, depth: int) -> tuple[Tensor, Tensor]:
    """Which steps of which chains are right, and which chains have a next token to guess: `[B, T, K]` and `[B, T]`."""
    B, T = lesson.batch.tokens_BT.shape
    right = torch.zeros(B * T, depth, dtype=torch.bool, device=lesson.rows_R.device)
    for step, out in enumerate(drafter.outputs(lesson, depth)):
        right[lesson.rows_R - 1 - step, step] = lesson.logits(out, step).argmax(-1) == lesson.next_R
    known = torch.zeros(B * T, dtype=torch.bool, device=right.device)
    known[lesson.rows_R - 1] = True
    return right.view(B, T, depth), known.view(B, T)


def by_task(documents: Sequence[Document], tokens: int, device: torch.device) -> dict[str, list[Batch]]:
    """Batches of about `tokens` tokens, each of one task."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(document.task, []).append(document)
    return {task: list(epoch(some, tokens, device)) for task, some in sorted(found.items())}


def evaluate(
    school: School, drafters: Sequence[TrainableDrafter], measured: Mapping[str, Sequence[Batch]], depth: int
) -> list[dict[str, Acceptance]]:
    """Per drafter and task, `all` first; chains of `depth` steps."""
    counts = [{task: Count(depth) for task in measured} for _ in drafters]
    for task, batches in measured.items():
        for batch in batches:
            lesson = school.lesson(batch, drafters, depth)
            for drafter, count in zip(drafters, counts, strict=True):
                drafter.eval()
                with school.precision():
                    right_BTK, known_BT = right_guesses(drafter, lesson, min(depth, reach(drafter, depth)))
                count[task].add(right_BTK.cpu().numpy(), known_BT.cpu().numpy())
    return [
        {"all": _sum(count.values(), depth).result(), **{task: one.result() for task, one in count.items()}}
        for count in counts
    ]


def reach(drafter: TrainableDrafter, depth: int) -> int:
    """How many steps it can guess at all: Medusa has as many as heads."""
    return drafter.depth if drafter.method == "medusa" else depth


class Count:
    """Chains that came to step k, and of these the right ones; tokens and steps of the walks."""

    def __init__(self, depth: int) -> None:
        self.came = np.zeros(depth, dtype=np.int64)
        self.right = np.zeros(depth, dtype=np.int64)
        self.tokens = self.steps = 0

    def add(self, right_BTK: NDArray[np.bool_], known_BT: NDArray[np.bool_]) -> None:
        for right_TK, known_T in zip(right_BTK, known_BT, strict=True):
            chains_CK = right_TK[known_T]
            length, depth = chains_CK.shape
            # Chain c's step k guesses token c + k of the answer, which must be there.
            there_CK = np.arange(length)[:, None] + np.arange(depth) < length
            so_far_CK = np.cumprod(chains_CK & there_CK, axis=1)
            came_CK = np.concatenate([np.ones((length, 1), dtype=np.int64), so_far_CK[:, :-1]], 1) * there_CK
            self.came[:depth] += came_CK.sum(0)
            self.right[:depth] += so_far_CK.sum(0)
            self._walk(so_far_CK.sum(1))

    def _walk(self, run_C: NDArray[np.integer]) -> None:
        place = 0
        while place < len(run_C):
            gained = min(int(run_C[place]) + 1, len(run_C) - place)
            self.tokens += gained
            self.steps += 1
            place += gained

    def result(self) -> Acceptance:
        with np.errstate(invalid="ignore"):
            alpha = self.right / np.where(self.came > 0, self.came, np.nan)
        tau = self.tokens / self.steps if self.steps else float("nan")
        return Acceptance(tuple(float(rate) for rate in alpha), tau, int(self.came[0]))


def _sum(counts: Iterable[Count], depth: int) -> Count:
    """All tasks together, each token weighing the same."""
    total = Count(depth)
    for count in counts:
        total.came += count.came
        total.right += count.right
        total.tokens += count.tokens
        total.steps += count.steps
    return total
