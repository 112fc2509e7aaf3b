"""Which tensors a trained drafter's folder must and may hold, by kind, under their published names.

Shapes: E hidden size, F inner size of the MLP, Q and K heads times head size, V the target's vocabulary, D the draft
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.drafters.head_format import HeadFormat
from engine.models.tensor_files import StoredTensor

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Names and shapes. Of each group in `together` there are all or none."""

    required: Shapes
    together: list[Shapes] = field(default_factory=list)
    optional: Shapes = field(default_factory=dict)

    def check(self, folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
        """ValueError names the folder and the first tensor that is missing, unknown or of another shape."""
        required, known = dict(self.required), self.required | self.optional
        for group in self.together:
            known |= group
            if group.keys() & tensors.keys():
                required |= group
        missing, unknown = sorted(required.keys() - tensors.keys()), sorted(tensors.keys() - known.keys())
        for problem, names in (("lacks the tensor", missing), ("has a tensor that is not supported:", unknown)):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                hint = "; it says which of the model's tokens can be drafted" if names[0] == "d2t" else ""
                raise ValueError(f"{folder} {problem} {names[0]!r}{more}: export the drafter again{hint}")
        for name, tensor in tensors.items():
            if tensor.shape != known[name]:
                raise ValueError(
                    f"{tensor.path}: tensor {name!r} has shape {list(tensor.shape)}, and by config.json it must have "
                    f"{list(known[name])}"
                )


def layout_of(drafter: HeadFormat) -> HeadLayout:
    """What a drafter of this kind and shape has."""
    V, D, E = drafter.vocab_size, drafter.draft_vocab, drafter.hidden_size
    makers = {"eagle3": _eagle3, "eagle1": _eagle1, "medusa": _medusa, "mtp": _mtp, "draft": _draft}
    parts = makers[drafter.kind](drafter)
    table: Shapes = {"d2t": (D,)}
    optional: Shapes = {"t2d": (V,)} | (table if D == V else {})
    if drafter.kind != "medusa":
        optional |= {"embed_tokens.weight": (V, E), "lm_head.weight": (D, E)}
    return HeadLayout(parts.required | ({} if D == V else table), parts.together, parts.optional | optional)


def _eagle3(drafter: HeadFormat) -> HeadLayout:
    E, inputs = drafter.hidden_size, len(drafter.aux_ids) or 3
    required = _block(drafter, "midlayer.", 2 * E)
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
        required[f"{name}.weight"] = (E,)
    required["fc.weight"] = (E, inputs * E)
    return HeadLayout(required, [_biases(drafter, "midlayer.")])


def _eagle1(drafter: HeadFormat) -> HeadLayout:
    E = drafter.hidden_size
    required = _block(drafter, "layers.0.", E) | {"fc.weight": (E, 2 * E)}
    return HeadLayout(required, [_biases(drafter, "layers.0.")], {"fc.bias": (E,)})


def _medusa(drafter: HeadFormat) -> HeadLayout:
    E, heads, depth = drafter.hidden_size, range(drafter.count), drafter.depth
    names = [f"{head}.{place}.linear" for head in heads for place in range(depth)]
    required: Shapes = {f"{name}.weight": (E, E) for name in names} | {f"{name}.bias": (E,) for name in names}
    return HeadLayout(required, [{f"{head}.{depth}.weight": (drafter.draft_vocab, E) for head in heads}])


def _mtp(drafter: HeadFormat) -> HeadLayout:
    E = drafter.hidden_size
    required: Shapes = {}
    heads: Shapes = {}
    biases = []
    for number in range(drafter.count):
        prefix = f"layers.{number}."
        required |= _block(drafter, prefix, E) | {prefix + "eh_proj.weight": (E, 2 * E)}
        for name in ("input_layernorm", "enorm", "hnorm", "shared_head.norm"):
            required[f"{prefix}{name}.weight"] = (E,)
        biases.append(_biases(drafter, prefix))
        heads[prefix + "shared_head.head.weight"] = (drafter.draft_vocab, E)
    return HeadLayout(required, [heads, *biases])


def _draft(drafter: HeadFormat) -> HeadLayout:
    E = drafter.hidden_size
    required: Shapes = {"norm.weight": (E,)}
    biases = []
    for number in range(drafter.count):
        prefix = f"layers.{number}."
        required |= _block(drafter, prefix, E) | {prefix + "input_layernorm.weight": (E,)}
        biases.append(_biases(drafter, prefix))
    return HeadLayout(required, biases)


def _block(drafter: HeadFormat, prefix: str, inputs: int) -> Shapes:
    """A Llama block whose attention takes `inputs` numbers, without the norm before it."""
    shape = drafter.block
    E, F = shape.hidden_size, shape.intermediate_size
    Q, K = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        f"{prefix}self_attn.q_proj.weight": (Q, inputs),
        f"{prefix}self_attn.k_proj.weight": (K, inputs),
        f"{prefix}self_attn.v_proj.weight": (K, inputs),
        f"{prefix}self_attn.o_proj.weight": (E, Q),
        f"{prefix}post_attention_layernorm.weight": (E,),
        f"{prefix}mlp.gate_proj.weight": (F, E),
        f"{prefix}mlp.up_proj.weight": (F, E),
        f"{prefix}mlp.down_proj.weight": (E, F),
    }


def _biases(drafter: HeadFormat, prefix: str) -> Shapes:
    """What blocks of Qwen2's kind have besides."""
    shape = drafter.block
    sizes = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    return {f"{prefix}self_attn.{name}_proj.bias": (heads * shape.head_dim,) for name, heads in sizes.items()}
