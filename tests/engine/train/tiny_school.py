"""A tiny target with a tokenizer and a chat template, and lessons from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers
import torch
from torch import Tensor

from engine.chat import ChatTemplate
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.tokenizer import Tokenizer
from engine.train.batches import pad
from engine.train.build import Sizes, build_drafter
from engine.train.corpus import Document
from engine.train.draft_vocab import DraftVocab
from engine.train.drafter import TrainableDrafter
from engine.train.lesson import Lesson
from engine.train.school import School
from engine.train.teacher import Teacher
from tests.engine.gguf_files import CHAT_TEMPLATE, SPECIAL, TOKENS
from tests.engine.tiny import random_weights

CONTEXT = 96
END = SPECIAL.index("<|im_end|>")
CONFIG = ModelConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    intermediate_size=24,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    context_len=CONTEXT,
)
SIZES = Sizes(eagle_depth=3, mtp_depth=3, medusa_heads=3)


def tiny_tokenizer() -> Tokenizer:
    """Bytes and a few merges."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE({text: token for token, text in enumerate(TOKENS)}, []))
    made.add_special_tokens(list(SPECIAL))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(
        made,
        special_ids=frozenset(range(len(SPECIAL))),
        eos_ids=frozenset({END}),
        chat_template=ChatTemplate(CHAT_TEMPLATE),
    )


def weights(dtype: torch.dtype = torch.float64, config: ModelConfig = CONFIG) -> dict[str, Tensor]:
    """Seeded, mild enough that answers vary and end now and then."""
    return random_weights(config, 3, dtype)


def tiny_teacher(dtype: torch.dtype = torch.float64, config: ModelConfig = CONFIG) -> Teacher:
    return Teacher(Decoder(config, weights(dtype, config), CONTEXT, "cpu"), tiny_tokenizer(), "tiny")


def tiny_school(dtype: torch.dtype = torch.float64, tokens: int | None = None) -> School:
    """A draft vocabulary of the first `tokens` tokens, or of all."""
    return School(tiny_teacher(dtype), DraftVocab.of(torch.arange(tokens or CONFIG.vocab_size), CONFIG.vocab_size))


def tiny_drafter(method: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> TrainableDrafter:
    torch.manual_seed(seed)
    return build_drafter(method, CONFIG, weights(), CONTEXT, SIZES).to(dtype)


def random_documents(count: int, length: int, seed: int = 0, task: str = "chat") -> list[Document]:
    """Random tokens; a quarter of each is the prompt."""
    rng = np.random.default_rng(seed)
    return [
        Document(rng.integers(0, CONFIG.vocab_size, length), length // 4, task, greedy=True, held_out=place % 4 == 0)
        for place in range(count)
    ]


def lesson_of(
    school: School, documents: Sequence[Document], drafters: Sequence[TrainableDrafter], depth: int
) -> Lesson:
    return school.lesson(pad(documents, school.device), drafters, depth)
