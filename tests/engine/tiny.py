"""Tiny seeded models, a plain reference decoder without cache or batch, and controllers that stress an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from adaptive.contract import (
    STANDARD,
    Acceptance,
    BoolArray,
    Capabilities,
    Decision,
    DraftProgress,
    IntArray,
    Needs,
    StepReport,
    StepView,
    TreeShape,
)
from adaptive.requests import Output, Request
from engine import EngineConfig, LLMEngine, SyntheticAcceptance
from engine.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.tokenizer import Tokenizer
from engine.tree import static_tree

TINY = ModelConfig(
    vocab_size=11,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    context_len=128,
)


def random_weights(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Weights under Hugging Face names, wide enough that the model's choices vary."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int, scale: float = 0.6) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    E, D, Q = config.hidden_size, config.head_dim, config.num_heads * config.head_dim
    KV, F = config.num_kv_heads * config.head_dim, config.intermediate_size
    weights = {"model.embed_tokens.weight": matrix(config.vocab_size, E, scale=1.0), "model.norm.weight": 1 + matrix(E)}
    if not config.tie_embeddings:
        weights["lm_head.weight"] = matrix(config.vocab_size, E)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes = {"q_proj": (Q, E), "k_proj": (KV, E), "v_proj": (KV, E), "o_proj": (E, Q)}
        for name, shape in shapes.items():
            weights[f"{prefix}self_attn.{name}.weight"] = matrix(*shape)
            if config.qkv_bias and name != "o_proj":
                weights[f"{prefix}self_attn.{name}.bias"] = matrix(shape[0])
        for name, shape in {"gate_proj": (F, E), "up_proj": (F, E), "down_proj": (E, F)}.items():
            weights[f"{prefix}mlp.{name}.weight"] = matrix(*shape)
        weights[prefix + "input_layernorm.weight"] = 1 + matrix(E, scale=0.1)
        weights[prefix + "post_attention_layernorm.weight"] = 1 + matrix(E, scale=0.1)
        if config.qk_norm:
            weights[prefix + "self_attn.q_norm.weight"] = 1 + matrix(D, scale=0.1)
            weights[prefix + "self_attn.k_norm.weight"] = 1 + matrix(D, scale=0.1)
    return weights


def near_weights(config: ModelConfig, seed: int = 0, noise: float = 0.1) -> dict[str, Tensor]:
    """The random weights of `seed`, each a little off: a draft model that is often right."""
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: tensor + noise * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in random_weights(config, seed).items()
    }


class Drafting(Protocol):
    """Something that drafts for a tiny model, made once the model is there."""

    def make(self, settings: EngineConfig, decoder: Decoder, weights: Mapping[str, Tensor]) -> Drafter: ...


@dataclass(frozen=True)
class DraftModel:
    """A second model; `context_len` of its config is where it stops drafting."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    same_tokenizer: bool = True

    def drafter(self, settings: EngineConfig, vocab_size: int) -> ModelDrafter:
        length = min(settings.context_len, self.config.context_len)
        decoder = Decoder(self.config, self.weights, length, settings.device)
        return ModelDrafter(decoder, settings, vocab_size, same_tokenizer=self.same_tokenizer)

    def make(self, settings: EngineConfig, decoder: Decoder, weights: Mapping[str, Tensor]) -> ModelDrafter:
        return self.drafter(settings, decoder.config.vocab_size)


UNTIED = replace(TINY, tie_embeddings=False)


def cycle_weights(order: Sequence[int]) -> dict[str, Tensor]:
    """`UNTIED` as a model that says the tokens of `order` (all of them) in turn for ever: copying drafts well."""
    weights = {name: torch.zeros_like(tensor) for name, tensor in random_weights(UNTIED).items()}
    for name in [name for name in weights if name.endswith("norm.weight")]:
        weights[name] += 1
    for token, successor in zip(order, [*order[1:], order[0]], strict=True):
        weights["model.embed_tokens.weight"][token, token] = 1
        weights["lm_head.weight"][successor, token] = 1
    return weights


def tiny_engine(
    config: ModelConfig = TINY,
    *,
    max_batch: int = 4,
    max_gamma: int = 5,
    seed: int = 0,
    draft: bool = True,
    draft_model: Drafting | None = None,
    span_outputs: bool = False,
    prefill_chunk: int = 8,
    prefix_reuse: bool = True,
    weights: Mapping[str, Tensor] | None = None,
    tokenizer: Tokenizer | None = None,
    synthetic: SyntheticAcceptance | None = None,
    device: str = "cpu",
    backend: str = "eager",
    max_tree_nodes: int = 0,
) -> LLMEngine:
    """An engine around a random model (float64, or `weights`), drafting by copying, or by `draft_model`."""
    weights = weights or random_weights(config, seed)
    settings = EngineConfig(
        max_batch=max_batch,
        context_len=96,
        max_gamma=max_gamma,
        prefill_chunk=prefill_chunk,
        prefix_reuse=prefix_reuse,
        dtype=str(weights["model.norm.weight"].dtype).removeprefix("torch."),
        device=device,
        backend=backend,
        max_tree_nodes=max_tree_nodes,
    )
    decoder = Decoder(config, weights, settings.context_len, device)
    drafter: Drafter | None = NgramDrafter(settings, min_match=1, span_outputs=span_outputs) if draft else None
    if draft_model is not None:
        drafter = draft_model.make(settings, decoder, weights)
    return LLMEngine(decoder, settings, tokenizer=tokenizer, drafter=drafter, synthetic=synthetic)


def reference_logits(config: ModelConfig, weights: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """All positions' logits by the textbook: no cache, no packing, repeated key/value heads `[T, V]`."""
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    T = len(tokens)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight

    def rope(x: Tensor) -> Tensor:
        inverse = config.rope_theta ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)
        angle = (torch.arange(T, dtype=x.dtype)[:, None] * inverse)[:, None]
        first, second = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)

    distance = torch.arange(T)[:, None] - torch.arange(T)
    hidden = distance < 0 if config.sliding_window is None else (distance < 0) | (distance >= config.sliding_window)
    x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
    for layer in range(config.num_layers):
        w = {name.split(f"layers.{layer}.")[1]: t for name, t in weights.items() if f"layers.{layer}." in name}
        h = norm(x, w["input_layernorm.weight"])

        def project(name: str, heads: int, h: Tensor = h, w: dict[str, Tensor] = w) -> Tensor:
            out = h @ w[f"self_attn.{name}.weight"].T
            return (out + w.get(f"self_attn.{name}.bias", torch.zeros((), dtype=out.dtype))).view(T, heads, D)

        q, k, v = project("q_proj", H), project("k_proj", K), project("v_proj", K)
        if config.qk_norm:
            q, k = norm(q, w["self_attn.q_norm.weight"]), norm(k, w["self_attn.k_norm.weight"])
        q, k = rope(q), rope(k).repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
        scores = torch.einsum("thd,shd->hts", q, k) / D**0.5
        mixed = torch.einsum("hts,shd->thd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
        x = x + mixed.reshape(T, H * D) @ w["self_attn.o_proj.weight"].T
        h = norm(x, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(h @ w["mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    head = weights["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
    return norm(x, weights["model.norm.weight"]) @ head.T


def reference_greedy(config: ModelConfig, weights: dict[str, Tensor], prompt: Sequence[int], count: int) -> list[int]:
    """Plain greedy decoding by full recomputation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(config, weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


Shape = int | tuple[int, ...]
"""A depth to draft, or the parents of a tree."""


def decision(shape: Shape, acceptance: Acceptance = STANDARD) -> Decision:
    if isinstance(shape, int):
        return Decision(shape, acceptance=acceptance)
    return Decision(static_tree(shape, len(shape)).depth, tree=TreeShape(shape), acceptance=acceptance)


class Cycling:
    """A controller that walks through a list of γ or trees, one per step, and keeps what it was told."""

    def __init__(self, shapes: Sequence[Shape], acceptance: Acceptance = STANDARD) -> None:
        decisions = [decision(shape, acceptance) for shape in shapes]
        self.gammas = tuple(decision.gamma for decision in decisions)
        self._next = cycle(decisions)
        self.views: list[StepView] = []
        self.reports: list[StepReport] = []
        self.forgotten: list[int] = []

    def attach(self, caps: Capabilities) -> Needs:
        return Needs.everywhere(caps, self.gammas)

    def plan(self, view: StepView) -> Decision:
        self.views.append(view)
        return next(self._next)

    def extend(self, progress: DraftProgress) -> BoolArray:
        return np.zeros(len(progress.rows), dtype=np.bool_)

    def trim(self, progress: DraftProgress) -> int | IntArray | None:
        return None

    def report(self, report: StepReport) -> None:
        self.reports.append(report)

    def forget(self, rows: Sequence[int]) -> None:
        self.forgotten.extend(rows)


def run_all(engine: LLMEngine, requests: Sequence[Request], per_step: int = 1_000) -> dict[str, list[Output]]:
    """Serve the requests, `per_step` of them joining before each step, until all have finished."""
    waiting = list(requests)
    outputs: dict[str, list[Output]] = {}
    running: set[str] = set()
    while waiting or running:
        for request in waiting[:per_step]:
            running.add(engine.submit(request))
        del waiting[:per_step]
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
            if output.finished:
                running.discard(output.request_id)
    return outputs


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]
