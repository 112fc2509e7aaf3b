"""The target as a teacher: whole sequences at once, with the inner features that drafters read.

Shapes: B sequences, T tokens each (padded at the end), N = B · T, E hidden size, H query heads, K key/value heads,
D head size, R positions that are learnt from, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention import Attention
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.tokenizer import Tokenizer
from engine.train.corpus import padded

LOGITS_AT_ONCE = {"cpu": 1 << 25, "cuda": 1 << 28}  # elements, by device: what several copies of fit into memory


@dataclass(frozen=True, slots=True)
class Features:
    """What the target thought. `hidden` is final-normed, `taps` the residual stream before layers, by their number."""

    hidden_BTE: Tensor
    taps: Mapping[int, Tensor]


def teaching_dtype(device: str) -> torch.dtype:
    """bfloat16 where it is multiplied fast (a GPU, a CPU with AVX-512 BF16 or AMX), else float32."""
    fast = torch.cpu.get_capabilities()
    low = device.startswith("cuda") or fast.get("avx512_bf16", False) or fast.get("amx_bf16", False)
    return torch.bfloat16 if low else torch.float32


class Teacher:
    """A frozen target. Nothing it computes carries gradients."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, name: str = "") -> None:
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.name = name

    @classmethod
    def load(cls, checkpoint: Checkpoint, context_len: int, device: str, dtype: torch.dtype | None = None) -> Teacher:
        """For sequences of `context_len` tokens, and the padding behind them; in the checkpoint's type or `dtype`.

        ValueError for a model whose attention has a window shorter than `context_len`.
        """
        window = checkpoint.config.sliding_window
        if window is not None and window < context_len:
            raise ValueError(
                f"training on {context_len} tokens needs full attention, and the model's window is {window}"
            )
        weights = checkpoint.weights
        if dtype is not None:
            weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        decoder = Decoder(checkpoint.config, weights, padded(context_len), device)
        return cls(decoder, checkpoint.tokenizer, checkpoint.name)

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    @property
    def context_len(self) -> int:
        """Tokens a sequence can have, padding included."""
        return self.decoder.cos.shape[0]

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding_VE.device

    @torch.no_grad()
    def read(self, tokens_BT: Tensor, taps: Collection[int] = ()) -> Features:
        """One causal pass. `taps` are layer numbers."""
        B, T = tokens_BT.shape
        positions_N = torch.arange(T, device=tokens_BT.device).repeat(B)
        attend = partial(_see_all_before, rows=B)
        hidden_NE, tapped = self.run(tokens_BT.flatten(), positions_N, attend, taps)
        return Features(hidden_NE.view(B, T, -1), {layer: x.view(B, T, -1) for layer, x in tapped.items()})

    def run(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Attention, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Final-normed hidden states `[N, E]`, and the residual stream before each tapped layer."""
        tapped: dict[int, Tensor] = {}

        def tap(layer: int, x_NE: Tensor) -> None:
            if layer in taps:
                tapped[layer] = x_NE

        return self.decoder.forward(tokens_N, positions_N, attend, tap), tapped

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.decoder.embedding_VE)

    def head_rows(self, ids: Tensor) -> Tensor:
        """The output head's rows for `ids` `[len(ids), E]`; of an untied head too."""
        weight = self.decoder.embedding_VE if self.config.tie_embeddings else self._untied_head()
        return weight.index_select(0, ids.to(weight.device))

    def _untied_head(self) -> Tensor:
        # The head is kept as a product only, so its rows are read off the unit vectors.
        eye = torch.eye(self.config.hidden_size, dtype=self.decoder.dtype, device=self.device)
        return self.decoder.logits(eye).T.contiguous()


def _see_all_before(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, *, rows: int) -> Tensor:
    q, k, v = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q_NHD, k_NKD, v_NKD))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(q_NHD.shape[0], -1)
