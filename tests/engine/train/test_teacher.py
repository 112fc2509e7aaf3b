from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.models.checkpoint import Checkpoint
from engine.train.batches import epoch
from engine.train.corpus import Document
from engine.train.teacher import Teacher
from tests.engine.tiny import reference_logits
from tests.engine.train.tiny_school import CONFIG, tiny_teacher, tiny_tokenizer, weights

VARIANTS = [
    CONFIG,
    replace(CONFIG, tie_embeddings=False, qkv_bias=True),
    replace(CONFIG, qk_norm=True),
]


@pytest.mark.parametrize("config", VARIANTS, ids=["plain", "biases", "normed heads"])
def test_reading_gives_the_references_logits(config: type(CONFIG)) -> None:  # type: ignore[valid-type]
    teacher = tiny_teacher(config=config)
    tokens = torch.randint(0, config.vocab_size, (2, 13), generator=torch.Generator().manual_seed(1))
    logits = teacher.decoder.logits(teacher.read(tokens).hidden_BTE)
    for row, some in zip(logits, tokens.tolist(), strict=True):
        torch.testing.assert_close(row, reference_logits(config, weights(config=config), some))


def test_taps_are_the_residual_stream_before_the_layers() -> None:
    """The stream before layer n is what a model of n layers hands to its final norm."""
    teacher = tiny_teacher()
    tokens = torch.arange(10).unsqueeze(0)
    taps = teacher.read(tokens, (0, 2)).taps
    torch.testing.assert_close(taps[0], teacher.embed(tokens))
    shallow = tiny_teacher(config=replace(CONFIG, num_layers=2))
    shallow.decoder.final_norm = torch.ones_like(shallow.decoder.final_norm)
    normed = taps[2] / (taps[2].pow(2).mean(-1, keepdim=True) + CONFIG.norm_eps).sqrt()
    torch.testing.assert_close(normed, shallow.read(tokens).hidden_BTE)


@pytest.mark.parametrize("tied", [True, False])
def test_head_rows_are_rows_of_the_head(tied: bool) -> None:
    config = replace(CONFIG, tie_embeddings=tied)
    teacher, ids = tiny_teacher(config=config), torch.tensor([7, 2, 30])
    hidden = torch.randn(5, config.hidden_size, dtype=torch.float64)
    torch.testing.assert_close(hidden @ teacher.head_rows(ids).T, teacher.decoder.logits(hidden)[:, ids])


def test_a_window_shorter_than_the_text_is_refused() -> None:
    config = replace(CONFIG, sliding_window=16)
    checkpoint = Checkpoint(config, weights(config=config), tiny_tokenizer())
    with pytest.raises(ValueError, match="window is 16"):
        Teacher.load(checkpoint, 32, "cpu")
    assert Teacher.load(checkpoint, 16, "cpu").config is config


def test_a_document_as_long_as_the_context_may_be_padded_past_it() -> None:
    teacher = Teacher.load(Checkpoint(CONFIG, weights(), tiny_tokenizer(), "tiny"), 40, "cpu")
    (batch,) = epoch([Document(np.arange(40) % 7, 3, "text")], 64, "cpu")
    assert batch.tokens_BT.shape == (1, 64)
    shorter = teacher.read(batch.tokens_BT[:, :40]).hidden_BTE
    torch.testing.assert_close(teacher.read(batch.tokens_BT).hidden_BTE[:, :40], shorter)


def test_a_teacher_of_lower_precision_leaves_the_checkpoint_as_it_was() -> None:
    """Drafters that begin as parts of the target copy the exact weights."""
    checkpoint = Checkpoint(CONFIG, weights(), tiny_tokenizer(), "tiny")
    teacher = Teacher.load(checkpoint, 40, "cpu", torch.bfloat16)
    assert teacher.read(torch.arange(8).unsqueeze(0)).hidden_BTE.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in checkpoint.weights.values()} == {torch.float64}
