"""Folders of trained drafters: what kind, of what shape, for which model, with which tensors; read like model folders.

A folder holds config.json and model.safetensors (or several files and an index), in the layouts that EAGLE, Medusa and
DeepSeek's MTP are published in. Everything is checked before weights are read.
"""

from __future__ import annotations

from pathlib import Path

from engine.drafters.head_format import AUX_IDS, HeadFormat, Kind
from engine.drafters.layouts import layout_of
from engine.models.config import ModelConfig
from engine.models.hf_config import read_rope
from engine.models.settings import Settings
from engine.models.tensor_files import StoredTensor, open_tensors

KINDS: tuple[Kind, ...] = ("eagle1", "eagle3", "medusa", "mtp")
"""Those that go by their own name; a small model of kind `draft` goes by `model`, like a whole one."""
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


def shares_embeddings(folder: str | Path) -> bool:
    """Whether a folder holds a small model without embedding and head, which drafts with its target's."""
    config = Path(folder).expanduser() / "config.json"
    return config.is_file() and Settings.read(config).flag("target_embeddings", False)


def _kind(settings: Settings) -> Kind:
    names = settings.texts("architectures")
    if names == ["LlamaForCausalLM"] and settings.flag("target_embeddings", False):
        return "draft"
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
