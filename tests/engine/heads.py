"""Folders of tiny random trained drafters, in the published formats, and engines that draft with them."""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.drafters import StepDrafter
from engine.drafters.formats import open_heads
from engine.drafters.head_format import HeadFormat, Kind
from engine.drafters.trained import make_trained
from engine.drafters.vocabulary import Target
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from tests.engine.tiny import TINY

ARCHITECTURES: dict[Kind, str] = {
    "eagle3": "LlamaForCausalLMEagle3",
    "eagle1": "EagleForCausalLM",
    "medusa": "MedusaModel",
    "mtp": "DeepSeekMTPModel",
    "draft": "LlamaForCausalLM",
}
INNER, HEADS, KV_HEADS, HEAD_DIM, EPS, THETA = 20, 2, 1, 6, 1e-5, 500.0
SLICE = (1, 2, 4, 5, 7, 8, 10)


@dataclass(frozen=True)
class HeadSpec:
    """What to build. `ids` are the draft vocabulary's tokens; `count` heads, modules or layers, `depth` blocks."""

    kind: Kind
    model: ModelConfig = TINY
    ids: tuple[int, ...] | None = None
    own_head: bool = False
    own_embedding: bool = False
    biases: bool = False
    count: int = 1
    depth: int = 1
    aux_ids: tuple[int, ...] = (0, 1, 2)
    context_len: int | None = None
    seed: int = 0
    scale: float = 0.5

    @property
    def draft_vocab(self) -> int:
        return self.model.vocab_size if self.ids is None else len(self.ids)


def head_config(spec: HeadSpec) -> dict[str, Any]:
    """What config.json says."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[spec.kind]],
        "hidden_size": spec.model.hidden_size,
        "vocab_size": spec.model.vocab_size,
        "draft_vocab_size": spec.draft_vocab,
    }
    if spec.kind == "medusa":
        return config | {"medusa_num_heads": spec.count, "medusa_num_layers": spec.depth}
    config |= {
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
    }
    if spec.context_len is not None:
        config["max_position_embeddings"] = spec.context_len
    if spec.kind == "eagle3":
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(spec.aux_ids)}
    if spec.kind == "draft":
        config["target_embeddings"] = True
    return config | {"num_nextn_predict_layers" if spec.kind == "mtp" else "num_hidden_layers": spec.count}


def head_weights(spec: HeadSpec) -> dict[str, Tensor]:
    """Random tensors under their published names, float64."""
    generator = torch.Generator().manual_seed(spec.seed)
    E, V, D = spec.model.hidden_size, spec.model.vocab_size, spec.draft_vocab

    def matrix(*shape: int) -> Tensor:
        return spec.scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    def norm() -> Tensor:
        return 1 + 0.2 * torch.randn(E, generator=generator, dtype=torch.float64)

    weights: dict[str, Tensor] = {}

    def block(prefix: str, inputs: int, norms: Sequence[str]) -> None:
        shapes = {"q_proj": (HEADS * HEAD_DIM, inputs), "k_proj": (KV_HEADS * HEAD_DIM, inputs)}
        shapes |= {"v_proj": shapes["k_proj"], "o_proj": (E, HEADS * HEAD_DIM)}
        for name, shape in shapes.items():
            weights[f"{prefix}self_attn.{name}.weight"] = matrix(*shape)
            if spec.biases and name != "o_proj":
                weights[f"{prefix}self_attn.{name}.bias"] = matrix(shape[0])
        for name, shape in {"gate_proj": (INNER, E), "up_proj": (INNER, E), "down_proj": (E, INNER)}.items():
            weights[f"{prefix}mlp.{name}.weight"] = matrix(*shape)
        for name in ("post_attention_layernorm", *norms):
            weights[f"{prefix}{name}.weight"] = norm()

    if spec.kind == "eagle3":
        block("midlayer.", 2 * E, ["input_layernorm", "hidden_norm"])
        weights |= {"norm.weight": norm(), "fc.weight": matrix(E, len(spec.aux_ids) * E)}
    elif spec.kind == "eagle1":
        block("layers.0.", E, [])
        weights["fc.weight"] = matrix(E, 2 * E)
        if spec.biases:
            weights["fc.bias"] = matrix(E)
    elif spec.kind == "mtp":
        for number in range(spec.count):
            block(f"layers.{number}.", E, ["input_layernorm", "enorm", "hnorm", "shared_head.norm"])
            weights[f"layers.{number}.eh_proj.weight"] = matrix(E, 2 * E)
            if spec.own_head:
                weights[f"layers.{number}.shared_head.head.weight"] = matrix(D, E)
    elif spec.kind == "draft":
        weights["norm.weight"] = norm()
        for number in range(spec.count):
            block(f"layers.{number}.", E, ["input_layernorm"])
    else:
        for number in range(spec.count):
            for place in range(spec.depth):
                weights[f"{number}.{place}.linear.weight"] = matrix(E, E)
                weights[f"{number}.{place}.linear.bias"] = matrix(E)
            if spec.own_head:
                weights[f"{number}.{spec.depth}.weight"] = matrix(D, E)
    if spec.own_head and spec.kind.startswith("eagle"):
        weights["lm_head.weight"] = matrix(D, E)
    if spec.own_embedding and spec.kind != "medusa":
        weights["embed_tokens.weight"] = matrix(V, E)
    if spec.ids is not None:
        ids = torch.tensor(spec.ids)
        weights["d2t"] = ids - torch.arange(D)
        weights["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill_(0, ids, True)
    return weights


def write_heads(folder: Path, spec: HeadSpec) -> Path:
    """A complete folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head_config(spec)), encoding="utf-8")
    save_file(head_weights(spec), folder / "model.safetensors")
    return folder


@cache
def built(spec: HeadSpec) -> HeadFormat:
    """The same folder for the same spec, gone when the tests are over."""
    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    return open_heads(write_heads(Path(place.name), spec))


@dataclass(frozen=True)
class TrainedHeads:
    """A drafter for `tiny_engine`, from a folder on disk."""

    spec: HeadSpec

    def make(self, settings: EngineConfig, decoder: Decoder, weights: Mapping[str, Tensor]) -> StepDrafter:
        found = built(self.spec)
        loaded = found.load(settings.torch_dtype)
        if settings.device == "meta":
            tables = {name for name, tensor in found.tensors.items() if tensor.is_table}
            loaded = {name: one if name in tables else one.to("meta") for name, one in loaded.items()}
        return make_trained(found, loaded, Target.of(decoder, weights), settings)
