"""Folders of trained drafters: what kind, of what shape, for which model, with which tensors; read like model folders.

A folder holds config.json and model.safetensors (or several files and an index), in the layouts that EAGLE, Medusa and
DeepSeek's MTP are published in. Everything is checked before weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.drafters.layouts import layout_of
from engine.models.config import ModelConfig
from engine.models.hf_config import read_rope
from engine.models.settings import Settings
from engine.models.tensor_files import StoredTensor, open_tensors

Kind = Literal["eagle1", "eagle3", "medusa", "mtp"]
KINDS: tuple[Kind, ...] = ("eagle1", "eagle3", "medusa", "mtp")
ARCHITECTURES: dict[str, Kind] = {
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3LlamaForCausalLM": "eagle3",
    "EagleForCausalLM": "eagle1",
    "EagleLlamaForCausalLM": "eagle1",
    "LlamaForCausalLMEagle": "eagle1",
    "MedusaModel": "medusa",
    "DeepSeekMTPModel": "mtp",
}
UNLIMITED = 1 << 30
REFUSED = ("norm_before_residual", "norm_before_fc", "fc_norm")  # variants of EAGLE-3 that compute something else
IGNORED = ".rotary_emb.inv_freq"  # follows from the config
AUX_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """A trained drafter before its weights are read. `count` is its heads or modules, `depth` a Medusa head's blocks.

    `block_shape` is that of its blocks, with `count` layers; Medusa has none. `aux_ids` is what config.json says of the
    layers whose residual stream it reads.
    """

    name: str
    kind: Kind
    hidden_size: int
    vocab_size: int
    draft_vocab: int
    count: int
    depth: int
    block_shape: ModelConfig | None
    aux_ids: tuple[int, ...]
    tensors: dict[str, StoredTensor]

    @property
    def block(self) -> ModelConfig:
        assert self.block_shape is not None, "Medusa has no blocks"
        return self.block_shape

    def aux_layers(self, num_layers: int) -> tuple[int, ...]:
        """The layers before which the residual stream is read (`num_layers`: after the last).

        By default 2, half and all but 3. Ids in config.json come in two conventions: starting with 1 they mean what
        comes out of a layer, else what goes into it (SGLang tells them apart in the same way). ValueError when out of
        range.
        """
        layers = self.aux_ids or (2, num_layers // 2, num_layers - 3)
        if layers[0] == 1:
            layers = tuple(layer + 1 for layer in layers)
        if not all(0 <= layer <= num_layers for layer in layers):
            raise ValueError(
                f"{self.name}: it reads the residual stream at layers {list(layers)} and the model has {num_layers}: "
                f"set {AUX_IDS} in its config.json to layers of the model"
            )
        return layers

    def check(self, model: ModelConfig) -> None:
        """ValueError unless it was made for a model of this shape."""
        sizes = {
            "hidden_size": (self.hidden_size, model.hidden_size),
            "vocab_size": (self.vocab_size, model.vocab_size),
        }
        for size, (own, expected) in sizes.items():
            if own != expected:
                raise ValueError(
                    f"{self.name} has {size}={own} and the model {expected}: it was trained for another model; "
                    "take a drafter that was trained for this one"
                )
        if self.kind == "eagle3":
            self.aux_layers(model.num_layers)

    @property
    def copied_rows(self) -> int:
        """Rows of the target's head that it copies: its draft vocabulary, unless its heads are its own."""
        own = ("lm_head.weight", f"0.{self.depth}.weight", "layers.0.shared_head.head.weight")
        sliced = "d2t" in self.tensors and not any(name in self.tensors for name in own)
        return self.draft_vocab if sliced else 0

    def max_gamma(self, gamma: int) -> int:
        """The deepest draft: a Medusa head drafts one token."""
        return min(gamma, self.count) if self.kind == "medusa" else gamma

    def load(self, dtype: torch.dtype, progress: Callable[[int, int], None] | None = None) -> dict[str, Tensor]:
        """Its tensors, weights cast to `dtype`; `progress(done, total)` is told bytes."""
        done, total = 0, sum(tensor.num_bytes for tensor in self.tensors.values())
        weights: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            weights[name] = tensor.read(dtype)
            done += tensor.num_bytes
            if progress is not None:
                progress(done, total)
        return weights


def open_heads(folder: str | Path) -> HeadFormat:
    """Read a trained drafter's shape. ValueError names the file and what is missing, unknown or of another shape."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ValueError(f"draft_model={str(folder)!r} is no folder: give one with config.json and model.safetensors")
    settings = Settings.read(path / "config.json")
    kind = _kind(settings)
    hidden, vocab = settings.integer("hidden_size"), settings.integer("vocab_size")
    counted = {"medusa": "medusa_num_heads", "mtp": "num_nextn_predict_layers"}.get(kind, "num_hidden_layers")
    count = settings.integer(counted, 1)
    if count < 1 or (kind.startswith("eagle") and count != 1):
        supported = "1" if kind.startswith("eagle") else "1 or more"
        raise ValueError(f"{settings.where}: {counted}={count} is not supported; supported: {supported}")
    depth = settings.integer("medusa_num_layers", 1)
    if depth < 1:
        raise ValueError(f"{settings.where}: medusa_num_layers={depth} is not valid: it must be at least 1")
    eagle = settings.section("eagle_config")
    aux_ids = eagle.integers(AUX_IDS) or settings.integers(AUX_IDS)
    for name in REFUSED:
        if settings.flag(name, False) or eagle.flag(name, False):
            raise ValueError(f"{settings.where}: {name} is not supported")
    found = HeadFormat(
        name=str(folder),
        kind=kind,
        hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab=settings.integer("draft_vocab_size", vocab),
        count=count,
        depth=depth,
        block_shape=None if kind == "medusa" else _block_shape(settings, count),
        aux_ids=tuple(aux_ids),
        tensors=_tensors(path),
    )
    layout_of(found).check(path, found.tensors)
    return found


def _kind(settings: Settings) -> Kind:
    names = settings.texts("architectures")
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ValueError(
            f"{settings.where}: architectures={names} is no trained drafter; supported: {', '.join(ARCHITECTURES)} "
            "(a whole model drafts with drafter='model')"
        )
    return ARCHITECTURES[names[0]]


def _block_shape(settings: Settings, count: int) -> ModelConfig:
    hidden, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    if heads < 1:
        raise ValueError(f"{settings.where}: num_attention_heads={heads} is not valid: it must be at least 1")
    theta, scaling = read_rope(settings)
    return ModelConfig(
        vocab_size=settings.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=count,
        num_heads=heads,
        num_kv_heads=settings.integer("num_key_value_heads", heads),
        head_dim=settings.integer("head_dim", hidden // heads),
        context_len=settings.integer("max_position_embeddings", UNLIMITED),
        rope_theta=theta,
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        rope_scaling=scaling,
    )


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """By name; some writers put `model.` before all of them."""
    tensors = open_tensors(path, tables=True)
    return {name.removeprefix("model."): one for name, one in tensors.items() if not name.endswith(IGNORED)}
