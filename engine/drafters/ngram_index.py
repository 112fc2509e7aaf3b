"""Where in a text each short run of tokens last ended: hash tables that a captured step can read and keep up to date.

Inserting a token and looking one up touch a fixed number of cells, however long the text is. A cell may be taken over
by another n-gram, so whoever looks up compares the tokens themselves: a lost entry costs a match, never a wrong one.

Shapes: R texts, B of them, T places, K longest n-gram, U = T + K - 1, S n-gram lengths, H hash functions, X all cells,
C = S · H candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

HASHES = 2
ABSENT = -1

_END_BITS = 40  # a candidate's end and its length share one number, to be compared at once


class NgramIndex:
    """The latest place where each n-gram of `min_match` to `max_match` tokens ended, in tables per text and length.

    Two independent hash functions have a table each: an n-gram is lost only where later ones took both of its cells. A
    table has 2 to 4 cells for each place of a text, `cells` (a power of two) unless given.
    """

    def __init__(
        self, texts: int, capacity: int, min_match: int, max_match: int, device: str, cells: int | None = None
    ) -> None:
        self.min_match, self.max_match = min_match, max_match
        cells = cells or cells_for(capacity)
        if cells < 2 or cells & (cells - 1):
            raise ValueError(f"cells={cells} must be a power of two, at least 2")
        shape = (texts, max_match - min_match + 1, HASHES)
        self.ends_RX = torch.full((texts, shape[1] * HASHES * cells), ABSENT, dtype=torch.int64, device=device)
        self.first_R1SH = (torch.arange(self.ends_RX.numel() // cells, device=device) * cells).view(
            texts, 1, *shape[1:]
        )
        self.back_K = torch.arange(max_match, device=device)
        self._reach_S1 = torch.arange(min_match - 1, max_match, device=device).unsqueeze(1)
        # Multilinear hashing (Thorup 2015): the upper bits of a sum of token × odd random number, modulo 2^64.
        generator = torch.Generator().manual_seed(0)
        factors_KH = torch.randint(-(2**63), 2**63 - 1, (max_match, HASHES), generator=generator) | 1
        self._factors_KH = factors_KH.to(device)
        self._shift, self._mask = 64 - (cells.bit_length() - 1), cells - 1

    def cells(self, tokens_BU: Tensor, first_B1SH: Tensor) -> Tensor:
        """The cells of the n-grams that end at each place `[B, T, S, H]`.

        Tokens come newest first: the n-grams of place t are those of `tokens_BU[:, t : t + max_match]`. `first_B1SH` is
        the part of `first_R1SH` that belongs to the texts.
        """
        windows_BTK = tokens_BU.unfold(1, self.max_match, 1)
        sums_BTKH = (windows_BTK.unsqueeze(3) * self._factors_KH).cumsum(2)
        return ((sums_BTKH[:, :, self.min_match - 1 :] >> self._shift) & self._mask) + first_B1SH

    def insert(self, cells_BTSH: Tensor, ends_BT: Tensor) -> None:
        """Remember where n-grams end; negative ends are left out, and n-grams that would begin before the text.

        The latest end wins whatever the order, so that inserting twice changes nothing.
        """
        ends_BT11 = ends_BT[:, :, None, None]
        ends_BTS1 = torch.where(ends_BT11 >= self._reach_S1, ends_BT11, ABSENT)
        values_BTSH = ends_BTS1.expand(cells_BTSH.shape)
        self.ends_RX.view(-1).scatter_reduce_(0, cells_BTSH.flatten(), values_BTSH.flatten(), "amax")

    def look_up(self, cells_BTSH: Tensor) -> Tensor:
        """Where the n-grams of the first place ended, each to be verified; `ABSENT` where none is known `[B, C]`."""
        return self.ends_RX.take(cells_BTSH[:, 0].flatten(1))

    def runs(self, same_BCK: Tensor) -> Tensor:
        """How many tokens of each candidate equal the newest ones, counted back to the first that does not `[B, C]`."""
        return torch.where(same_BCK, self.max_match, self.back_K).amin(2)


def cells_for(capacity: int) -> int:
    """Cells of one table for texts of so many tokens: the least power of two that is twice as many or more."""
    return 1 << max(1, (2 * capacity - 1).bit_length())


def table_bytes(texts: int, capacity: int, min_match: int, max_match: int) -> int:
    """Memory of an index."""
    return texts * (max_match - min_match + 1) * HASHES * cells_for(capacity) * 8


def longest(runs_BC: Tensor, ends_BC: Tensor) -> tuple[Tensor, Tensor]:
    """The longest run and where it ended, the latest of equals; run 0 where there is none `[B, 1]` each."""
    best_B1 = ((runs_BC << _END_BITS) + ends_BC).amax(1, keepdim=True).clamp(min=0)
    return best_B1 >> _END_BITS, best_B1 & ((1 << _END_BITS) - 1)
