"""What is known of a trained drafter before its weights are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.tensor_files import StoredTensor

Kind = Literal["eagle1", "eagle3", "medusa", "mtp", "draft"]
AUX_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """A trained drafter's kind, shape and tensors. `draft` is a small model that lives between the target's embedding
    and head.

    `count` is its heads, modules or layers, `depth` a Medusa head's blocks. `block_shape` is that of its blocks, with
    `count` layers; Medusa has none. `aux_ids` is what config.json says of the layers whose residual stream it reads.
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
        copied = "d2t" in self.tensors or self.kind == "draft"
        return self.draft_vocab if copied and not any(name in self.tensors for name in own) else 0

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
