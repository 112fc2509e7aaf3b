"""An engine that is settled, checked, and not loaded yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from engine.config import EngineConfig, SettingError
from engine.drafters import Drafter, ModelDrafter, NgramDrafter
from engine.drafters.formats import KINDS, open_heads, shares_embeddings
from engine.drafters.head_format import HeadFormat
from engine.drafters.shipped import METHODS, shipped_drafter
from engine.drafters.trained import make_trained
from engine.drafters.vocabulary import Target
from engine.models.decoder import Decoder
from engine.models.source import ModelSource, open_model

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance

DEFAULT_CONTEXT = 2048
DRAFTERS = ("ngram", "model", *KINDS)

DraftSource = ModelSource | HeadFormat
Read = Callable[[DraftSource], Mapping[str, Tensor]]
"""Gives the weights of what drafts."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine will be made of; weights are still in their files.

    `draft` is what drafts where that has weights, the target's own `source` where it drafts for itself.
    """

    source: ModelSource
    config: EngineConfig
    drafter: str | None
    draft: DraftSource | None = None
    span_outputs: bool = False
    synthetic: SyntheticAcceptance | None = None

    @property
    def max_gamma(self) -> int:
        """The deepest draft."""
        if self.drafter is None:
            return 0
        gamma = self.config.max_gamma
        return self.draft.max_gamma(gamma) if isinstance(self.draft, HeadFormat) else gamma

    def make_drafter(self, target: Target, config: EngineConfig, read: Read) -> Drafter | None:
        """The drafter for `target`, with buffers as `config` says; `read` is asked where it has weights of its own."""
        if self.drafter == "ngram":
            return NgramDrafter(config, span_outputs=self.span_outputs)
        if self.draft is None:
            return None
        vocab_size = self.source.config.vocab_size
        if self.draft is self.source:
            return ModelDrafter(target.decoder, config, vocab_size, same_tokenizer=True)
        weights = read(self.draft)
        if isinstance(self.draft, HeadFormat):
            return make_trained(self.draft, weights, target, config)
        shape = self.draft.config
        decoder = Decoder(shape, weights, min(config.context_len, shape.context_len), config.device)
        return ModelDrafter(decoder, config, vocab_size, same_tokenizer=True)


def plan_engine(
    model: str | Path | ModelSource = "smollm2-135m",
    *,
    revision: str | None = None,
    drafter: str | None = "ngram",
    draft_model: str | Path | None = None,
    span_outputs: bool = False,
    max_batch: int = 8,
    context_len: int | None = None,
    max_gamma: int = 16,
    max_tree_nodes: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str | None = None,
    prefix_reuse: bool = True,
    synthetic: SyntheticAcceptance | None = None,
) -> EnginePlan:
    """Settle what `engine.load_engine` describes. Plans over one `ModelSource` can share its weights.

    SettingError for settings that do not fit, ValueError for bad files, FetchError when the hub gives no model.
    """
    _check_drafter(drafter, draft_model, span_outputs)
    source = model if isinstance(model, ModelSource) else open_model(model, revision)
    config = EngineConfig(
        max_batch=max_batch,
        context_len=_context_len(context_len, source.config.context_len),
        max_gamma=max_gamma,
        max_tree_nodes=max_tree_nodes,
        dtype=dtype,
        device=device,
        backend=backend or ("cuda" if device.startswith("cuda") else "eager"),
        prefix_reuse=prefix_reuse,
    )
    draft = _open_draft(drafter, draft_model, source)
    plan = EnginePlan(source, config, drafter, draft, span_outputs, synthetic)
    if synthetic is not None:  # what would fail after minutes of loading
        synthetic.conditional(plan.max_gamma)
    return plan


def _context_len(wanted: int | None, limit: int) -> int:
    """Tokens per row; `limit` is the model's own."""
    if wanted is not None and wanted > limit:
        raise SettingError(f"context_len={wanted} is above the model's own limit of {limit} tokens")
    return min(DEFAULT_CONTEXT, limit) if wanted is None else wanted


def _check_drafter(drafter: str | None, draft_model: str | Path | None, span_outputs: bool) -> None:
    if drafter is not None and drafter not in DRAFTERS:
        raise SettingError(f"drafter={drafter!r} is unknown: choose one of {', '.join(DRAFTERS)}, or none")
    if draft_model is not None and drafter not in METHODS:
        raise SettingError(
            f"draft_model={str(draft_model)!r} goes with a drafter that has weights ({', '.join(METHODS)}), "
            f"not with drafter={drafter or 'none'!r}"
        )
    if span_outputs and drafter != "ngram":
        raise SettingError(f"drafter={drafter!r} and span_outputs=True: only drafter='ngram' copies earlier outputs")


def _open_draft(drafter: str | None, draft_model: str | Path | None, target: ModelSource) -> DraftSource | None:
    """What drafts. ValueError when it is of another kind or for another model.

    The target's own source where it drafts for itself, so that its weights are loaded once.
    """
    if drafter not in METHODS:
        return None
    if draft_model is None:
        draft_model = shipped_drafter(target.name, drafter)
        if draft_model is None:
            raise SettingError(_none_shipped(drafter, target.name))
    if drafter == "model" and not shares_embeddings(draft_model):
        return target if str(draft_model) == target.name else open_model(draft_model)
    heads = open_heads(draft_model)
    name = "model" if heads.kind == "draft" else heads.kind
    if name != drafter:
        raise ValueError(f"{heads.name} holds a drafter of kind {name!r}: load it with drafter={name!r}")
    heads.check(target.config)
    return heads


def _none_shipped(drafter: str, target: str) -> str:
    method = METHODS[drafter]
    return (
        f"no drafter={drafter!r} for {target} comes with the package: name yours by draft_model=FOLDER, or train one "
        f"with `adaptive train --method {method} --target {target}`"
    )
