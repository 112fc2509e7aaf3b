"""The device's picture of every row: what it holds, may still emit, and how it samples.

Everything a captured step reads or writes lives here, allocated once. Buffers have R + 1 rows; the last is trash for
padding. Shapes: R rows, P capacity, M largest γ, O columns of the packed feedback, S planes of signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.contract import DRAFT_SIGNALS, TARGET_SIGNALS, IntArray
from adaptive.requests import MAX_LOGPROBS
from engine.control import StepControl
from engine.graphs import Read, Write

if TYPE_CHECKING:
    from engine.request_state import RequestState


@dataclass(frozen=True, slots=True)
class OutColumns:
    """Columns of the packed feedback row: M + 1 tokens, then six numbers, the last a float in the same 64 bits."""

    max_gamma: int

    @property
    def accepted(self) -> int:
        return self.max_gamma + 1

    @property
    def verified(self) -> int:
        return self.max_gamma + 2

    @property
    def available(self) -> int:
        return self.max_gamma + 3

    @property
    def match_len(self) -> int:
        return self.max_gamma + 4

    @property
    def lossy(self) -> int:
        return self.max_gamma + 5

    @property
    def spent(self) -> int:
        return self.max_gamma + 6

    @property
    def width(self) -> int:
        return self.max_gamma + 7


class RowState:
    """Persistent per-row buffers. `history_RP[row, :lens_R[row]]` are the row's tokens; its cache holds all but one.

    The newest token is the *root* of the next step: its key and value are written there, so that prompts need no
    logits of their own and a prompt's last token is just the first root.
    """

    def __init__(self, rows: int, capacity: int, max_gamma: int, device: str) -> None:
        self.rows, self.capacity, self.max_gamma = rows, capacity, max_gamma
        self.columns = OutColumns(max_gamma)

        def ints(*shape: int) -> Tensor:
            return torch.zeros((rows + 1, *shape), dtype=torch.int64, device=device)

        self.history_RP = ints(capacity)
        self.lens_R = ints() + 1  # a row that was never used still has a root to point at
        self.live_R = ints()
        self.budget_R = ints()  # tokens the row may still emit
        self.draft_cap_R = ints()  # 0 for requests that opted out of speculation
        self.drafts_RM = ints(max_gamma)
        self.draft_lens_R = ints()
        self.verify_lens_R = ints()  # draft tokens that the step at hand verifies
        self.match_lens_R = ints()
        self.cached_R = ints()  # tokens whose keys and values a draft model holds, always fewer than the row has
        self.steps_R = ints()  # the request's own step count, which keys its randomness
        self.seeds_R = ints()
        self.allow_lossy_R = ints()  # a rule that is not exact acts on these rows alone
        self.top_k_R = ints()
        self.top_p_R = torch.ones(rows + 1, dtype=torch.float32, device=device)
        self.temperature_R = torch.zeros(rows + 1, dtype=torch.float32, device=device)
        self._num_out = rows * self.columns.width
        shape = (len(DRAFT_SIGNALS) + len(TARGET_SIGNALS), rows, max_gamma)
        # One buffer, so that one copy takes all to the host; the signals are floats in the same 64 bits.
        self.feedback_X = torch.zeros(self._num_out + math.prod(shape), dtype=torch.int64, device=device)
        self.out_X = self.feedback_X[: self._num_out]
        self.out_RO = self.out_X.view(rows, self.columns.width)
        self.spent_R = self.out_RO.view(torch.float64)[:, self.columns.spent]
        self.signals_SRM = self.feedback_X[self._num_out :].view(torch.float64).view(shape)
        self.control = StepControl(rows, max_gamma, device)
        self.logprob_ids_RWX = ints(max_gamma + 1, MAX_LOGPROBS)
        self.logprobs_RWX = torch.zeros((rows + 1, max_gamma + 1, MAX_LOGPROBS + 1), device=device)

    # What the host changes and reads goes through the backend, in one queue with the pieces.

    def admit(self, write: Write, request: RequestState) -> None:
        """Write a request into its row; it decodes only once `start` is called."""
        sampling, tokens = request.request.sampling, request.all_tokens()
        write(self.history_RP[request.row, : len(tokens)], tokens)
        values: tuple[tuple[Tensor, int | float], ...] = (
            (self.lens_R, len(tokens)),
            (self.budget_R, request.budget - len(request.tokens)),
            (self.draft_cap_R, self.max_gamma if request.request.speculation else 0),
            (self.steps_R, request.steps),
            (self.seeds_R, request.seed),
            (self.allow_lossy_R, int(request.request.allow_lossy)),
            (self.top_k_R, sampling.top_k),
            (self.top_p_R, sampling.top_p),
            (self.temperature_R, sampling.temperature),
            (self.draft_lens_R, 0),
            (self.match_lens_R, 0),
            (self.cached_R, request.cached),
        )
        for buffer, value in values:
            write(buffer[request.row], value)

    def start(self, write: Write, row: int) -> None:
        write(self.live_R[row], 1)

    def release(self, write: Write, row: int) -> None:
        write(self.live_R[row], 0)

    def tokens(self, read: Read, row: int, start: int) -> list[int]:
        """A row's tokens from place `start` on, read from the device (waits for it)."""
        end = int(read(self.lens_R[row : row + 1])[0])
        tokens: list[int] = read(self.history_RP[row, start:end]).tolist()
        return tokens

    def align(self, write: Write, row: int, budget: int, steps: int) -> None:
        """Set what an interrupted step may have left half done."""
        write(self.budget_R[row], budget)
        write(self.steps_R[row], steps)
        write(self.cached_R[row], 0)

    def restore(self, write: Write, row: int, cached: int) -> None:
        """Say how many tokens a draft model's cache holds, now that some were copied."""
        write(self.cached_R[row], cached)

    def available(self, batch: int) -> Tensor:
        """Draft tokens each of the first `batch` rows could verify now `[B]`: proposed, allowed and within budget."""
        proposed = torch.minimum(self.draft_lens_R[:batch], self.draft_cap_R[:batch])
        return torch.minimum(proposed, self.budget_R[:batch] - 1).clamp(min=0) * self.live_R[:batch]

    def fill_drafts(self, batch: int) -> None:
        """Lengthen the proposals of the first `batch` rows to the largest γ, by repeating the row's newest token."""
        newest_B1 = self.history_RP[:batch].gather(1, self.lens_R[:batch].unsqueeze(1) - 1)
        place_M = torch.arange(self.max_gamma, device=newest_B1.device)
        missing_BM = place_M >= self.draft_lens_R[:batch].unsqueeze(1)
        self.drafts_RM[:batch].copy_(torch.where(missing_BM, newest_B1, self.drafts_RM[:batch]))
        self.draft_lens_R[:batch].fill_(self.max_gamma)

    def mutable(self) -> list[Tensor]:
        """What a step changes and a capture's warm-up must put back."""
        changed = [self.history_RP, self.lens_R, self.budget_R, self.steps_R, self.drafts_RM, self.draft_lens_R]
        return [*changed, self.match_lens_R, self.verify_lens_R, self.cached_R, self.feedback_X]

    def outputs(self) -> list[Tensor]:
        """What a step leaves for the host alone, read before the next one."""
        judged = self.signals_SRM[len(DRAFT_SIGNALS) :]
        return [self.out_RO, judged, self.logprob_ids_RWX, self.logprobs_RWX]

    def unpack(self, packed: NDArray[Any]) -> tuple[IntArray, NDArray[np.float64]]:
        """`out_RO` and `signals_SRM` as they stand in a host copy of `feedback_X`."""
        out_RO, signals_X = packed[: self._num_out], packed[self._num_out :]
        return out_RO.reshape(tuple(self.out_RO.shape)), signals_X.view(np.float64).reshape(
            tuple(self.signals_SRM.shape)
        )
