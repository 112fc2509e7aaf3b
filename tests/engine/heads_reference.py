"""What trained drafters compute, by the textbook: no cache, no packing, a row computed anew for each draft token.

Shapes: T tokens of one row, E hidden size, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.models.config import ModelConfig
from tests.engine.heads import EPS, HEAD_DIM, HEADS, KV_HEADS, THETA, HeadSpec, head_weights

Weights = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def attention(x: Tensor, w: Weights, prefix: str, heads: int, kv_heads: int, size: int, theta: float) -> Tensor:
    """Causal attention with rotary positions, its output projection included."""
    T = len(x)

    def project(name: str, count: int) -> Tensor:
        out = x @ w[f"{prefix}self_attn.{name}.weight"].T
        bias = w.get(f"{prefix}self_attn.{name}.bias")
        return (out if bias is None else out + bias).view(T, count, size)

    def rope(y: Tensor) -> Tensor:
        inverse = theta ** (-torch.arange(0, size, 2, dtype=y.dtype) / size)
        angle = (torch.arange(T, dtype=y.dtype)[:, None] * inverse)[:, None]
        first, second = y[..., : size // 2], y[..., size // 2 :]
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)

    q, k, v = rope(project("q_proj", heads)), rope(project("k_proj", kv_heads)), project("v_proj", kv_heads)
    k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / size**0.5
    future = torch.arange(T)[:, None] < torch.arange(T)
    mixed = torch.einsum("hts,shd->thd", scores.masked_fill(future, float("-inf")).softmax(-1), v)
    return mixed.reshape(T, -1) @ w[f"{prefix}self_attn.o_proj.weight"].T


def mlp(x: Tensor, w: Weights, prefix: str, eps: float = EPS) -> Tensor:
    y = norm(x, w[f"{prefix}post_attention_layernorm.weight"], eps)
    inner = silu(y @ w[f"{prefix}mlp.gate_proj.weight"].T) * (y @ w[f"{prefix}mlp.up_proj.weight"].T)
    return inner @ w[f"{prefix}mlp.down_proj.weight"].T


def streams(config: ModelConfig, w: Weights, tokens: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """The target's residual stream before each layer and after the last, and its final-normed hidden state `[T, E]`."""
    x = w["model.embed_tokens.weight"][torch.tensor(tokens)]
    found = [x]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        y = norm(x, w[f"{prefix}input_layernorm.weight"], config.norm_eps)
        sizes = (config.num_heads, config.num_kv_heads, config.head_dim, config.rope_theta)
        x = x + attention(y, w, prefix, *sizes)
        x = x + mlp(x, w, prefix, config.norm_eps)
        found.append(x)
    return found, norm(x, w["model.norm.weight"], config.norm_eps)


def draft_logits(spec: HeadSpec, target: Weights, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
    """Logits over the draft vocabulary `[D]` of the draft token that follows `tokens` and `drafts`."""
    dtype = target["model.norm.weight"].dtype
    w = {name: tensor.to(dtype) for name, tensor in head_weights(spec).items()}
    found, hidden = streams(spec.model, target, tokens[:-1])
    tied = target["model.embed_tokens.weight"]
    embedding = w.get("embed_tokens.weight", tied)
    head = target.get("lm_head.weight", tied)
    head = w.get("lm_head.weight", head if spec.ids is None else head[torch.tensor(spec.ids)])
    after = torch.tensor([*tokens[1:], *drafts])
    if spec.kind == "draft":
        return small_model(spec, w, embedding[torch.tensor([*tokens, *drafts])], head)
    if spec.kind == "medusa":
        return medusa(spec, w, hidden[-1], len(drafts), head)
    if spec.kind == "mtp":
        return mtp(spec, w, hidden, embedding[after], len(drafts), head)
    feature = hidden
    if spec.kind == "eagle3":
        feature = torch.cat([found[layer] for layer in spec.aux_ids], -1) @ w["fc.weight"].T
    out = feature
    for _ in range(len(drafts) + 1):
        out = (eagle3 if spec.kind == "eagle3" else eagle1)(w, embedding[after[: len(feature)]], feature)
        feature = torch.cat([feature, out[-1:]])
    last = norm(out[-1], w["norm.weight"]) if spec.kind == "eagle3" else out[-1]
    return last @ head.T


def eagle3(w: Weights, embedding: Tensor, feature: Tensor) -> Tensor:
    both = torch.cat(
        [norm(embedding, w["midlayer.input_layernorm.weight"]), norm(feature, w["midlayer.hidden_norm.weight"])], -1
    )
    x = feature + attention(both, w, "midlayer.", HEADS, KV_HEADS, HEAD_DIM, THETA)
    return x + mlp(x, w, "midlayer.")


def eagle1(w: Weights, embedding: Tensor, feature: Tensor) -> Tensor:
    x = torch.cat([embedding, feature], -1) @ w["fc.weight"].T
    if "fc.bias" in w:
        x = x + w["fc.bias"]
    x = x + attention(x, w, "layers.0.", HEADS, KV_HEADS, HEAD_DIM, THETA)
    return x + mlp(x, w, "layers.0.")


def medusa(spec: HeadSpec, w: Weights, x: Tensor, number: int, head: Tensor) -> Tensor:
    for place in range(spec.depth):
        x = x + silu(x @ w[f"{number}.{place}.linear.weight"].T + w[f"{number}.{place}.linear.bias"])
    return x @ w.get(f"{number}.{spec.depth}.weight", head).T


def mtp(spec: HeadSpec, w: Weights, hidden: Tensor, embedding: Tensor, drafted: int, head: Tensor) -> Tensor:
    """Module k sees token i + k + 1 beside what module k - 1 made of i; past the last one, it is fed its own output."""

    def module(number: int, embedding: Tensor, hidden: Tensor) -> Tensor:
        prefix = f"layers.{number}."
        both = [norm(embedding, w[f"{prefix}enorm.weight"]), norm(hidden, w[f"{prefix}hnorm.weight"])]
        x = torch.cat(both, -1) @ w[f"{prefix}eh_proj.weight"].T
        y = norm(x, w[f"{prefix}input_layernorm.weight"])
        x = x + attention(y, w, prefix, HEADS, KV_HEADS, HEAD_DIM, THETA)
        return x + mlp(x, w, prefix)

    turn = min(drafted, spec.count - 1)
    for number in range(turn):
        hidden = module(number, embedding[number : number + len(hidden)], hidden)
    out = hidden
    for _ in range(drafted - turn + 1):
        out = module(turn, embedding[turn : turn + len(hidden)], hidden)
        hidden = torch.cat([hidden, out[-1:]])
    own = w.get(f"layers.{turn}.shared_head.head.weight", head)
    return norm(out[-1], w[f"layers.{turn}.shared_head.norm.weight"]) @ own.T


def small_model(spec: HeadSpec, w: Weights, x: Tensor, head: Tensor) -> Tensor:
    for layer in range(spec.count):
        prefix = f"layers.{layer}."
        y = norm(x, w[f"{prefix}input_layernorm.weight"])
        x = x + attention(y, w, prefix, HEADS, KV_HEADS, HEAD_DIM, THETA)
        x = x + mlp(x, w, prefix)
    return norm(x[-1], w["norm.weight"]) @ head.T
