"""The tokenizer inside a GGUF file, rebuilt on the `tokenizers` library.

A GGUF file holds tokens, merges and the *name* of the pre-tokenizer; the regular expressions behind the names are
known to readers only. Source of the expressions: the tokenizer files the model makers publish and llama.cpp's table.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from engine.chat import ChatTemplate
from engine.models.gguf_file import GgufFile
from engine.tokenizer import Tokenizer

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types in GGUF; the others take part in merging only

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

END_TOKENS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"})
"""Control tokens that end an answer whether or not the file says so: files often declare one of two."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merging. `splits` apply one after the other, each to the pieces of the one before."""

    splits: tuple[str, ...]
    compose: bool = False  # Unicode NFC first
    whole_words: bool = False  # a piece that is a token stays whole, merges or not
    adds_bos: bool = False  # when the file does not say


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((GPT2,)),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "smollm": PreTokenizer((r"\p{N}", GPT2)),
    "llama-bpe": PreTokenizer((LLAMA3,), whole_words=True, adds_bos=True),
    "qwen2": PreTokenizer((QWEN2,), compose=True),
}


def load_tokenizer(file: GgufFile) -> Tokenizer:
    """ValueError names a tokenizer model or pre-tokenizer that is not supported."""
    kind = file.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(f"{file.path}: tokenizer model {kind!r} is not supported; supported: 'gpt2' (byte-level BPE)")
    pre = _pre_tokenizer(file)
    tokens = file.texts("tokenizer.ggml.tokens")
    kinds = file.integers("tokenizer.ggml.token_type")
    special = [token for token, kind_ in enumerate(kinds) if kind_ in (UNKNOWN, CONTROL)]
    backend = _byte_level_bpe(tokens, file.texts("tokenizer.ggml.merges"), pre)
    backend.add_special_tokens([AddedToken(tokens[token], special=True, normalized=False) for token in special])
    backend.add_tokens(
        [AddedToken(tokens[token], normalized=False) for token, kind_ in enumerate(kinds) if kind_ == USER_DEFINED]
    )
    bos_id = file.optional_integer("tokenizer.ggml.bos_token_id")
    adds_bos = file.flag("tokenizer.ggml.add_bos_token", pre.adds_bos)
    return Tokenizer(
        backend,
        special_ids=frozenset(special),
        eos_ids=_end_ids(file, tokens, special),
        bos_id=bos_id if adds_bos else None,
        chat_template=_chat_template(file, tokens, bos_id),
    )


def _pre_tokenizer(file: GgufFile) -> PreTokenizer:
    name = file.text("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(repr(known) for known in PRE_TOKENIZERS)
        raise ValueError(f"{file.path}: pre-tokenizer {name!r} is not supported; supported: {known}")
    return PRE_TOKENIZERS[name]


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: PreTokenizer) -> tokenizers.Tokenizer:
    vocab = {text: token for token, text in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE(vocab, pairs, ignore_merges=pre.whole_words))
    if pre.compose:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _end_ids(file: GgufFile, tokens: list[str], special: list[int]) -> frozenset[int]:
    declared = (file.optional_integer(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    named = (token for token in special if tokens[token] in END_TOKENS)
    return frozenset(token for token in declared if token is not None) | frozenset(named)


def _chat_template(file: GgufFile, tokens: list[str], bos_id: int | None) -> ChatTemplate | None:
    source = file.optional_text("tokenizer.chat_template")
    if source is None:
        return None
    eos_id = file.optional_integer("tokenizer.ggml.eos_token_id")
    return ChatTemplate(
        source,
        bos_token="" if bos_id is None else tokens[bos_id],
        eos_token="" if eos_id is None else tokens[eos_id],
    )
