from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.config import ModelConfig, RopeScaling
from engine.models.hf_config import read_config
from tests.engine.models.hf_folders import LLAMA3_ROPE, change_json, write_json

LLAMA2 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "vocab_size": 100,
}


def config(folder: Path, **changes: object) -> ModelConfig:
    write_json(folder / "config.json", LLAMA2)
    change_json(folder / "config.json", **changes)
    return read_config(folder)


def test_what_a_file_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    assert config(tmp_path) == ModelConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        context_len=256,
        rope_theta=10000.0,
        norm_eps=1e-5,
        tie_embeddings=False,
    )
    assert config(tmp_path, rms_norm_eps=...).norm_eps == 1e-6
    assert config(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert config(tmp_path, architectures=["MistralForCausalLM"]).sliding_window == 4096


def test_explicit_values_win(tmp_path: Path) -> None:
    read = config(tmp_path, head_dim=24, num_key_value_heads=2, rope_theta=5e5, tie_word_embeddings=True)
    assert (read.head_dim, read.num_kv_heads, read.rope_theta, read.tie_embeddings) == (24, 2, 5e5, True)


def test_biases_are_the_architectures(tmp_path: Path) -> None:
    def biases(architecture: str, **changes: object) -> tuple[bool, bool]:
        read = config(tmp_path, architectures=[architecture], **changes)
        return read.qkv_bias, read.out_bias

    assert biases("LlamaForCausalLM") == (False, False)
    assert biases("LlamaForCausalLM", attention_bias=True) == (True, True)
    assert biases("Qwen2ForCausalLM") == (True, False)
    assert biases("MistralForCausalLM", attention_bias=True) == (False, False), "transformers ignores it there"


def test_windows(tmp_path: Path) -> None:
    def window(architecture: str, **changes: object) -> int | None:
        return config(tmp_path, architectures=[architecture], **changes).sliding_window

    assert window("LlamaForCausalLM", sliding_window=8) is None
    assert window("MistralForCausalLM", sliding_window=8) == 8
    assert window("MistralForCausalLM", sliding_window=None) is None
    assert window("Qwen2ForCausalLM", sliding_window=8) is None
    switched = {"sliding_window": 8, "use_sliding_window": True}
    assert window("Qwen2ForCausalLM", **switched, max_window_layers=0) == 8
    assert window("Qwen2ForCausalLM", **switched, max_window_layers=3) is None
    assert window("Qwen2ForCausalLM", **switched) is None, "from layer 28 on"
    assert window("Qwen3ForCausalLM", **switched, layer_types=["sliding_attention"] * 3) == 8


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotary_settings_in_both_places(tmp_path: Path, key: str) -> None:
    read = config(tmp_path, **{key: LLAMA3_ROPE})
    assert read.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 32)
    assert read.rope_theta == 1000.0
    plain = config(tmp_path, **{key: {"type": "default"}}, rope_theta=7.0)
    assert (plain.rope_scaling, plain.rope_theta) == (None, 7.0)


def test_the_original_context_defaults_to_the_models(tmp_path: Path) -> None:
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if not key.startswith("original")}
    read = config(tmp_path, rope_scaling=scaling)
    assert read.rope_scaling is not None
    assert read.rope_scaling.original_context_len == 256


SUPPORTED = "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"architectures": ["Gemma3ForCausalLM"]}, f"architecture 'Gemma3ForCausalLM' is not supported; {SUPPORTED}"),
    ({"architectures": ...}, r"architectures=\[\] is not supported"),
    ({"hidden_act": "gelu"}, "activation 'gelu' is not supported; supported: 'silu'"),
    ({"mlp_bias": True}, r"biases in the MLP \(mlp_bias\) are not supported"),
    ({"quantization_config": {"quant_method": "gptq"}}, "weights quantised by 'gptq' are not supported; supported: un"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope type 'linear' is not supported; supported: default, ll"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
    ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5 is not supported; supported: 1\.0"),
    ({"rope_scaling": {"rope_type": "llama3"}}, r"config\.json: rope_scaling has no 'factor'"),
    ({"rope_scaling": LLAMA3_ROPE | {"low_freq_factor": 4.0}}, "low_freq_factor=4.0 and high_freq_factor=4.0 are not"),
    ({"hidden_size": ...}, r"config\.json has no 'hidden_size'"),
    ({"hidden_size": "64"}, "hidden_size='64' is not valid: it must be a whole number"),
    ({"rms_norm_eps": True}, "rms_norm_eps=True is not valid: it must be a number"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings=1 is not valid: it must be true or false"),
    ({"rope_scaling": "llama3"}, "rope_scaling='llama3' is not valid: it must be an object"),
    ({"num_attention_heads": 0}, "num_attention_heads=0 is not valid"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **changes)


def test_a_window_in_some_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a sliding window in 1 of 3 layers is not supported; supported: in all"):
        config(tmp_path, architectures=["Qwen2ForCausalLM"], use_sliding_window=True, max_window_layers=2)


def test_a_file_that_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json: the folder is not a complete Hugging Face model"):
        read_config(tmp_path)
    file = tmp_path / "config.json"
    for content, message in (("{", "is not valid JSON"), ("[]", "is not a JSON object: it holds list")):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_config(tmp_path)
