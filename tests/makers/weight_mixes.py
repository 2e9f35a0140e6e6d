"""The mixes that models are published in: which tensor gets which type.

`LLAMA` are the mixes of llama.cpp's quantizer, by llama_tensor_get_type_impl in src/llama-quant.cpp for a file that is
made with an importance matrix. Mixes whose name is also that of a type begin with "mix-". The rules for models with
exactly 8 experts and for other architectures are left out.

`PUBLISHED` approximates files of others, whose recipes are not published. Facts of Unsloth's are:
- ud-iq2_xxs: blocks 6, 7, 12, 22 and 23 of a Qwen3.5-4B with mostly IQ2_XXS (listed in huggingface/candle#3821).
- ud-q4_k_xl: all ssm_alpha, ssm_beta and ssm_out of the 27B are Q8_0, attention has more bits than the feed-forward
  network of Q4_K and Q5_K (huggingface.co/steampunque/Qwen3.5-27B-MP-GGUF/discussions/1); the 27B has 5.235 bits per
  weight (huggingface.co/sokann/Qwen3.6-27B-GGUF-5.076bpw); ffn_down_exps of the 35B-A3B is Q5_K beside Q4_K
  (gittensor-ai-lab/sparkinfer#224); the 35B-A3B has 21 GB (huggingface.co/mudler/Qwen3.6-35B-A3B-APEX-GGUF).
- The matrices of the 35B-A3B's UD-Q6_K_XL that are no experts' and no delta net's are Q8_0, by the numbers of tensors
  (ikawrakow/ik_llama.cpp#1420).
- All: ffn_down has more bits than ffn_up and ffn_gate; attention and, most of all, ssm_out have more; no MXFP4
  (unsloth.ai/docs/models/qwen3.5/gguf-benchmarks).
The rest is assumed by analogy: the types of ud-q2_k_xl, ud-iq3_xxs and ud-iq4_nl, those of experts' models beside the
experts, and Q8_0 for the head's block.

mxfp4-moe is llama.cpp's. nvfp4 is what conversion of NVIDIA's checkpoints gives: each quantized matrix has a scale
(ggml-org/llama.cpp#20506, #23563), the embeddings and the gates of the delta net stay BF16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import NamedTuple

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T

from makers.gguf_types import Q2_0
from makers.model_shapes import Shape, Tensor
from makers.random_weights import TYPES, stays_f32, type_of


class Place(NamedTuple):
    """The place of a tensor in a model.

    part: the tensor's name without the block's number, such as "ffn_down_exps".
    block, n_blocks: the number of its block, and of all blocks, the head's included.
    recurrent: whether the block is a gated delta net.
    """

    part: str
    block: int
    n_blocks: int
    recurrent: bool
    shape: Shape

    @property
    def nth_down(self) -> int:
        """Return the index of an ffn_down among all of them: a block of experts has two."""
        return self.block * (2 if self.shape.n_expert else 1) + self.part.endswith("shexp")


_GATES = ("ssm_alpha", "ssm_beta", "ssm_ba")

Rule = T | Callable[[Place], T | None]  # None: the mix's own type
# Rules by the part. "" is the mix's own type, "experts" are the experts' matrices, "head" all of the head's block, and
# "others" those of models with experts beside experts, embeddings, output, gates and outputs of the delta nets
Mix = Mapping[str, Rule]


def _place(shape: Shape, name: str) -> Place:
    words = name.split(".")
    block = int(words[1]) if words[0] == "blk" else -1
    blocks = shape.recurrent_layers
    return Place(words[-2], block, len(blocks), block >= 0 and blocks[block], shape)


def _more_bits(kind: T, other: T | None = None) -> Rule:
    """Return a rule for the first and last eighth of the blocks, and for each third one between: use_more_bits."""

    def rule(at: Place) -> T | None:
        eighth = at.n_blocks // 8
        first_or_last = at.block < eighth or at.block >= 7 * at.n_blocks // 8
        return kind if first_or_last or (at.block - eighth) % 3 == 2 else other

    return rule


def _first(share: int, kind: T, other: T | None = None) -> Rule:
    """Return a rule for the first n-th part of the blocks."""
    return lambda at: kind if at.block < at.n_blocks // share else other


def _first_downs(kind: T) -> Rule:
    return lambda at: kind if at.nth_down < at.n_blocks // 8 else None


def _shared_heads(kind: T, other: T | None = None) -> Rule:
    """Return a rule for models in which at least four heads share their K and V."""
    return lambda at: kind if at.shape.n_head // at.shape.n_head_kv >= 4 else other


def _values(rule: Rule) -> dict[str, Rule]:
    """Return the rules for V, which llama.cpp uses for fused Q, K and V as well."""
    return {"attn_v": rule, "attn_qkv": rule}


def _low_bits(own: T, *, embeddings: T, values: T, first_downs: T, output: T | None = None) -> Mix:
    """Return the mix of a type with one or two bits. values: unless heads share V, or there are experts."""

    def value_rule(at: Place) -> T | None:
        return T.Q4_K if at.shape.n_head // at.shape.n_head_kv >= 4 or at.shape.n_expert >= 4 else values

    mix: dict[str, Rule] = {"": own, "output": T.Q5_K, "token_embd": embeddings, **_values(value_rule)}
    return mix | {"ffn_down": _first_downs(first_downs)} | ({} if output is None else {"attn_output": output})


def _middle(kind: T) -> Rule:
    return lambda at: kind if at.n_blocks // 8 <= at.block < 7 * at.n_blocks // 8 else None


_TWO_BITS = {"embeddings": T.Q2_K, "values": T.Q2_K, "first_downs": T.Q2_K}
_TWO_BITS_MORE = {"embeddings": T.IQ3_S, "values": T.IQ3_S, "first_downs": T.IQ3_S, "output": T.IQ3_S}
LLAMA: dict[str, Mix] = {
    "q3_k_s": {"": T.Q3_K},
    "q3_k_m": {
        "": T.Q3_K,
        **_values(lambda at: T.Q5_K if at.block < 2 else T.Q4_K),
        "ffn_down": _first(16, T.Q5_K, T.Q4_K),
        "attn_output": T.Q4_K,
    },
    "q3_k_l": {"": T.Q3_K, **_values(T.Q5_K), "ffn_down": T.Q5_K, "attn_output": T.Q5_K},
    "q4_k_s": {
        "": T.Q4_K,
        **_values(lambda at: T.Q5_K if at.block < 4 else None),
        "ffn_down": _first(8, T.Q5_K),
    },
    "q4_k_m": {"": T.Q4_K, **_values(_more_bits(T.Q6_K)), "ffn_down": _more_bits(T.Q6_K)},
    "q5_k_s": {"": T.Q5_K},
    "q5_k_m": {"": T.Q5_K, **_values(_more_bits(T.Q6_K)), "ffn_down": _more_bits(T.Q6_K)},
    "mix-q2_k": {"": T.Q2_K, **_values(_shared_heads(T.Q4_K, T.Q3_K)), "ffn_down": T.Q3_K, "attn_output": T.Q3_K},
    "mix-iq1_s": _low_bits(T.IQ1_S, **_TWO_BITS, output=T.IQ2_XXS),
    "mix-iq1_m": _low_bits(T.IQ1_M, **_TWO_BITS, output=T.IQ2_XXS),
    "mix-iq2_xxs": _low_bits(T.IQ2_XXS, **_TWO_BITS),
    "mix-iq2_xs": _low_bits(T.IQ2_XS, **_TWO_BITS),
    "mix-iq2_s": _low_bits(T.IQ2_XS, **_TWO_BITS_MORE),
    "iq2_m": _low_bits(T.IQ2_S, **_TWO_BITS_MORE),
    "mix-iq3_xxs": {
        "": T.IQ3_XXS,
        "output": T.Q5_K,
        "token_embd": T.IQ3_S,
        **_values(_shared_heads(T.Q4_K)),
        "attn_q": T.IQ2_S,
        "attn_k": T.IQ2_S,
        "attn_output": T.IQ3_S,
    },
    "iq3_xs": {
        "": T.IQ3_S,
        **_values(_shared_heads(T.Q4_K)),
        "attn_q": T.IQ3_XXS,
        "attn_k": T.IQ3_XXS,
        "ffn_gate": _middle(T.IQ3_XXS),
        "ffn_up": _middle(T.IQ3_XXS),
    },
    "mix-iq3_s": {"": T.IQ3_S, **_values(_shared_heads(T.Q4_K))},
    "iq3_m": {"": T.IQ3_S, **_values(T.Q4_K), "ffn_down": _first(8, T.Q4_K), "attn_output": T.Q4_K},
    "mix-iq4_xs": {"": T.IQ4_XS, **_values(_shared_heads(T.Q5_K))},
    "mix-iq4_nl": {"": T.IQ4_NL, **_values(_shared_heads(T.Q5_K))},
    "mxfp4-moe": {"": T.Q8_0, "output": T.Q8_0, "experts": T.MXFP4},
}


def _ud(own: T, others: T, *, embeddings: T, output: T, ssm_out: T, down: Rule, **parts: Rule) -> Mix:
    """Return a mix of Unsloth's.

    others: the type of all matrices that are no experts', in models with experts.
    parts: of models without experts.
    """
    ends = {"output": output, "token_embd": embeddings, "head": T.Q8_0, "others": others}
    return {"": own, **ends, **dict.fromkeys(_GATES, T.Q8_0), "ssm_out": ssm_out, "ffn_down": down, **parts}


def _iq2_down(at: Place) -> T:
    return T.IQ3_S if at.block < at.n_blocks // 4 else T.IQ2_S if at.recurrent else T.IQ2_XXS


PUBLISHED: dict[str, Mix] = {
    "ud-iq2_xxs": _ud(
        T.IQ2_XXS,
        T.Q5_K,
        embeddings=T.Q2_K,
        output=T.Q5_K,
        ssm_out=T.Q4_K,
        down=_iq2_down,
        attn_v=T.IQ3_XXS,
        attn_gate=T.IQ3_XXS,
    ),
    "ud-q2_k_xl": _ud(
        T.Q2_K,
        T.Q6_K,
        embeddings=T.Q4_K,
        output=T.Q6_K,
        ssm_out=T.Q6_K,
        down=_first(4, T.Q3_K, T.IQ3_XXS),
        ffn_gate=_first(4, T.Q2_K, T.IQ2_S),
        ffn_up=_first(4, T.Q2_K, T.IQ2_S),
        attn_q=T.Q3_K,
        attn_k=T.Q4_K,
        attn_v=T.Q4_K,
        attn_qkv=T.Q3_K,
        attn_gate=T.Q3_K,
        attn_output=T.IQ4_XS,
    ),
    "ud-iq3_xxs": _ud(
        T.IQ3_XXS,
        T.Q6_K,
        embeddings=T.IQ3_S,
        output=T.Q5_K,
        ssm_out=T.Q5_K,
        down=_first(4, T.IQ4_XS, T.IQ3_S),
        attn_v=T.IQ4_XS,
        attn_gate=T.IQ3_S,
    ),
    "ud-iq4_nl": _ud(
        T.IQ4_NL, T.Q8_0, embeddings=T.Q5_K, output=T.Q6_K, ssm_out=T.Q8_0, down=_first(4, T.Q5_K), attn_v=T.Q5_K
    ),
    "ud-q4_k_xl": _ud(
        T.Q4_K,
        T.Q8_0,
        embeddings=T.Q4_K,
        output=T.Q6_K,
        ssm_out=T.Q8_0,
        down=T.Q5_K,
        attn_q=T.Q5_K,
        attn_k=T.Q5_K,
        attn_v=T.Q6_K,
        attn_qkv=T.Q5_K,
        attn_gate=T.Q5_K,
        attn_output=T.Q5_K,
    ),
    "nvfp4": {
        "": T.NVFP4,
        "token_embd": T.BF16,
        "output": T.NVFP4,
        "head": T.Q8_0,
        **dict.fromkeys(_GATES, T.BF16),
    },
}
MIXES = LLAMA | PUBLISHED
# types whose blocks fit into rows that those of another type do not fit into: tensor_type_fallback
_FALLBACKS = {
    **dict.fromkeys((T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ4_XS), T.IQ4_NL),
    **dict.fromkeys((T.Q2_K, T.Q3_K, T.TQ1_0, T.TQ2_0, Q2_0), T.Q4_0),
    T.Q4_K: T.Q5_0,
    T.Q5_K: T.Q5_1,
    T.Q6_K: T.Q8_0,
}


_SCALED = (".scale", ".input_scale")  # names of the factors of an NVFP4 matrix, and of what it is multiplied by


def is_known(weight_type: str) -> bool:
    """Tell whether there are such types or such a mix: a name in MIXES, or names in TYPES with "+" between them."""
    return weight_type in MIXES or all(name in TYPES for name in weight_type.split("+"))


def absent_types(shape: Shape, weight_type: str) -> str:
    """Return the types that a weight_type is named by and that no tensor of a shape gets, with ", " between them."""
    if weight_type in MIXES:
        mix = MIXES[weight_type]
        named = {mix.get("experts", mix[""])}
    else:
        named = {TYPES[name] for name in weight_type.split("+")}
    used = {kind for _, kind in tensor_types(shape, weight_type)}
    return ", ".join(name for name, kind in TYPES.items() if kind in named - used)


def tensor_types(shape: Shape, weight_type: str) -> list[tuple[Tensor, T]]:
    """Return all tensors of a file in its order, with their types.

    weight_type: a name in MIXES or TYPES, or several of TYPES with "+" between them, which the matrices have in turns.
    """
    if weight_type not in MIXES:
        turns = cycle(TYPES[name] for name in weight_type.split("+"))
        kept = {tensor: stays_f32(tensor) for tensor in shape.tensors()}
        return [(tensor, T.F32 if kept[tensor] else type_of(tensor, next(turns))) for tensor in kept]
    found = list[tuple[Tensor, T]]()
    for tensor in shape.tensors():
        kind = T.F32 if stays_f32(tensor) else _mixed_type(MIXES[weight_type], shape, tensor)
        found.append((tensor, kind))
        if kind == T.NVFP4 and tensor.name != "token_embd.weight":
            name, n = tensor.name.removesuffix(".weight"), tensor.ne[2] if len(tensor.ne) == 3 else 1
            found += [(Tensor(name + end, (n,)), T.F32) for end in _SCALED]
    return found


def _mixed_type(mix: Mix, shape: Shape, tensor: Tensor) -> T:
    own, at = mix[""], _place(shape, tensor.name)
    assert isinstance(own, T)  # it is no rule
    if at.part == "output" or (at.part == "token_embd" and shape.tied):
        rule = mix.get("output", T.Q6_K) if _fits(own, tensor) else T.Q8_0
    else:
        rule = _rule(mix, at)
    kind = rule if isinstance(rule, T) else rule(at)
    kind = own if kind is None else kind
    if not _fits(kind, tensor):
        kind = _FALLBACKS.get(kind, T.F16)
    return kind if _fits(kind, tensor) else T.F16


def _rule(mix: Mix, at: Place) -> Rule:
    experts = at.part.endswith("_exps")
    if "head" in mix and at.block >= at.shape.n_layer:
        return mix["head"]
    if "experts" in mix and experts:
        return mix["experts"]
    if "others" in mix and at.shape.n_expert and at.block >= 0 and not experts and at.part not in (*_GATES, "ssm_out"):
        return mix["others"]
    return mix.get(at.part.removesuffix("_exps").removesuffix("_shexp"), mix[""])


def _fits(kind: T, tensor: Tensor) -> bool:
    return tensor.ne[0] % GGML_QUANT_SIZES[kind][0] == 0
