"""Writes tiny GGUF files, as llama.cpp's converter would lay them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

Array = NDArray[np.float32]

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 64, 96, 2, 4, 2, 24, 128  # 4 · 24 is not 64

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_TOKEN = "<tool call>"
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "Ġ Ġ", "Ã ©", "' s")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


TOKENS = [*SPECIAL, USER_TOKEN, *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]


@dataclass(frozen=True)
class TinyGguf:
    """What to write; the defaults are a complete tied llama with a `smollm` tokenizer."""

    arch: str = "llama"
    tokenizer: str = "gpt2"
    pre: str | None = "smollm"
    add_bos: bool | None = None
    chat_template: str | None = CHAT_TEMPLATE
    tied: bool = True
    quantized: bool = False
    integers: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    extra: Mapping[str, Array] = field(default_factory=dict)

    def weights(self) -> dict[str, Array]:
        """Seeded weights under Hugging Face names."""
        rng = np.random.default_rng(7)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN)}
        if not self.tied:
            shapes["lm_head.weight"] = (len(TOKENS), HIDDEN)
        for layer in range(LAYERS):
            name = f"model.layers.{layer}"
            for projection, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                shapes[f"{name}.self_attn.{projection}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
                if self.arch == "qwen2":
                    shapes[f"{name}.self_attn.{projection}_proj.bias"] = (heads * HEAD_DIM,)
                if self.arch == "qwen3" and projection != "v":
                    shapes[f"{name}.self_attn.{projection}_norm.weight"] = (HEAD_DIM,)
            shapes[f"{name}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
            shapes[f"{name}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
            shapes[f"{name}.mlp.up_proj.weight"] = (INNER, HIDDEN)
            shapes[f"{name}.mlp.down_proj.weight"] = (HIDDEN, INNER)
            shapes[f"{name}.input_layernorm.weight"] = (HIDDEN,)
            shapes[f"{name}.post_attention_layernorm.weight"] = (HIDDEN,)
        shapes["model.norm.weight"] = (HIDDEN,)
        return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        self._write_shape(writer)
        self._write_tokenizer(writer)
        for key, number in self.integers.items():
            writer.add_uint32(key, number)
        for key, text in self.texts.items():
            writer.add_string(key, text)
        for name, values in (self._gguf_tensors() | dict(self.extra)).items():
            if self.quantized and values.ndim == 2:
                packed = quantize(values, gguf.GGMLQuantizationType.Q8_0)
                writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            elif name not in self.without:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _write_shape(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_block_count(LAYERS)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(5000.0)

    def _write_tokenizer(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.tokenizer)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(TOKENS)
        rest = len(TOKENS) - len(SPECIAL) - 1
        writer.add_token_types([CONTROL] * len(SPECIAL) + [USER_DEFINED] + [NORMAL] * rest)
        writer.add_token_merges(list(MERGES))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if self.add_bos is not None:
            writer.add_add_bos_token(self.add_bos)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)

    def _gguf_tensors(self) -> dict[str, Array]:
        renamed = {
            "model.layers.": "blk.",
            "self_attn.o_proj": "attn_output",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            "model.embed_tokens": "token_embd",
            "model.norm": "output_norm",
            "lm_head": "output",
        }
        tensors = {}
        for original, weight in self.weights().items():
            values = weight
            if self.arch == "llama" and ".q_proj." in original:
                values = pair_rows(values, HEADS)
            if self.arch == "llama" and ".k_proj." in original:
                values = pair_rows(values, KV_HEADS)
            name = original
            for theirs, ours in renamed.items():
                name = name.replace(theirs, ours)
            tensors[name] = values
        return tensors


def pair_rows(rows: Array, heads: int) -> Array:
    """llama.cpp's order: row 2i and 2i + 1 of a head rotate together (i and i + head_dim / 2 before)."""
    head_dim = len(rows) // heads
    order = [half * (head_dim // 2) + pair for pair in range(head_dim // 2) for half in (0, 1)]
    return np.concatenate([rows[head * head_dim : (head + 1) * head_dim][order] for head in range(heads)])
