"""config.json of a Hugging Face model to a ModelConfig; refuses what the decoder would compute wrongly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.models.config import ModelConfig, RopeScaling
from engine.models.settings import Settings

ROPE_TYPES = ("default", "llama3")
DEFAULT_THETA = 10000.0
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture decides whatever its config.json says, and what it means where that says nothing.

    `window` tells when `sliding_window` counts: "always", "switched" by `use_sliding_window`, or "never".
    `optional_bias`: `attention_bias` adds biases to all four attention projections.
    """

    window: str = "never"
    qkv_bias: bool = False
    optional_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family(optional_bias=True),
    "MistralForCausalLM": Family(window="always"),
    "Qwen2ForCausalLM": Family(window="switched", qkv_bias=True),
    "Qwen3ForCausalLM": Family(window="switched", optional_bias=True, qk_norm=True, head_dim=128),
}


def read_config(folder: Path) -> ModelConfig:
    """The model's shape. ValueError names what is missing, malformed or not supported."""
    settings = Settings.read(folder / "config.json")
    family = _family(settings)
    _refuse_variants(settings)
    hidden, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    if heads < 1:
        raise ValueError(f"{settings.where}: num_attention_heads={heads} is not valid: it must be at least 1")
    biased = family.optional_bias and settings.flag("attention_bias", False)
    theta, scaling = read_rope(settings)
    return ModelConfig(
        vocab_size=settings.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=settings.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=settings.integer("num_key_value_heads", heads),
        head_dim=settings.integer("head_dim", family.head_dim or hidden // heads),
        context_len=settings.integer("max_position_embeddings"),
        rope_theta=theta,
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        tie_embeddings=settings.flag("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or biased,
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(settings, family),
        rope_scaling=scaling,
        out_bias=biased,
    )


def _family(settings: Settings) -> Family:
    names = settings.texts("architectures")
    if len(names) != 1 or names[0] not in FAMILIES:
        what = f"architecture {names[0]!r}" if len(names) == 1 else f"architectures={names}"
        raise ValueError(f"{settings.where}: {what} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[names[0]]


def _refuse_variants(settings: Settings) -> None:
    activation = settings.text("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"{settings.where}: activation {activation!r} is not supported; supported: 'silu'")
    if settings.flag("mlp_bias", False):
        raise ValueError(f"{settings.where}: biases in the MLP (mlp_bias) are not supported")
    for key in ("quantization_config", "compression_config"):
        if settings.has(key):
            method = settings.section(key).text("quant_method", "unknown")
            raise ValueError(
                f"{settings.where}: weights quantised by {method!r} are not supported; supported: unquantised "
                "float32, bfloat16, float16 and float64, and any quantisation of a GGUF file"
            )


def read_rope(settings: Settings) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_scaling` or, since transformers 5, from `rope_parameters` with the base inside."""
    rope = settings.section("rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters")
    theta = rope.number("rope_theta", settings.number("rope_theta", DEFAULT_THETA))
    rotary = rope.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0))
    if rotary != 1.0:
        raise ValueError(f"{rope.where}: partial_rotary_factor={rotary} is not supported; supported: 1.0")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"{rope.where}: rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if kind == "default":
        return theta, None
    context_len = settings.integer("max_position_embeddings")
    original = rope.integer("original_max_position_embeddings", context_len)
    scaling = RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context_len=settings.integer("original_max_position_embeddings", original),
    )
    return theta, scaling


def _sliding_window(settings: Settings, family: Family) -> int | None:
    if family.window == "never":
        return None
    if family.window == "switched" and not settings.flag("use_sliding_window", False):
        return None
    if "sliding_window" in settings.values and not settings.has("sliding_window"):
        return None
    window = settings.integer("sliding_window", DEFAULT_WINDOW)
    if family.window == "always":
        return window
    layers = settings.integer("num_hidden_layers")
    windowed = _windowed_layers(settings, layers)
    if windowed not in (0, layers):
        raise ValueError(
            f"{settings.where}: a sliding window in {windowed} of {layers} layers is not supported; supported: "
            "in all of them or in none"
        )
    return window if windowed else None


def _windowed_layers(settings: Settings, layers: int) -> int:
    kinds = settings.texts("layer_types")
    if kinds:
        return kinds.count("sliding_attention")
    return max(0, layers - settings.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS))
