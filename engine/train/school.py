"""A teacher, the draft vocabulary and how exact to compute: what all drafters of one training share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from engine.train.draft_vocab import DraftVocab
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Batch, Lesson, Reading, prepare, read
from engine.train.teacher import Teacher

HARD = 0.3  # share of the single likeliest token in what is taught: what counts at temperature 0 is the first place


class School:
    """Turns batches into lessons. The teacher reads each batch once, however many drafters learn from it."""

    def __init__(self, teacher: Teacher, vocab: DraftVocab, hard: float = HARD, spare_bytes: int = 0) -> None:
        """`spare_bytes` of memory are for keeping what the teacher thought of batches that may come again."""
        self.teacher = teacher
        self.vocab = vocab.to(teacher.device)
        self.head_SE = teacher.head_rows(self.vocab.ids_S)
        self.hard = hard
        self._spare_bytes = spare_bytes
        self._readings: dict[tuple[int, int], Reading] = {}

    @property
    def device(self) -> torch.device:
        return self.teacher.device

    def precision(self) -> AbstractContextManager[object]:
        """The teacher's type for the drafters' products too; their weights stay as exact as they are."""
        low = self.teacher.decoder.dtype == torch.bfloat16
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if low else nullcontext()

    def lesson(self, batch: Batch, drafters: Sequence[TrainableDrafter], depth: int) -> Lesson:
        """For chains of up to `depth` steps. A batch that comes again is not read again, as far as memory is spared."""
        taps = {layer for drafter in drafters for layer in drafter.taps}
        reading = self._readings.get((id(batch), depth))
        if reading is None or not taps <= reading.features.taps.keys():
            reading = read(self.teacher, batch, taps, depth)
            self._keep(reading, depth)
        return prepare(self.teacher, self.vocab, self.head_SE, reading, self.hard)

    def _keep(self, reading: Reading, depth: int) -> None:
        # A reading holds its batch, so that the batch's id is not given to another one.
        if reading.num_bytes <= self._spare_bytes:
            self._spare_bytes -= reading.num_bytes
            self._readings[id(reading.batch), depth] = reading
