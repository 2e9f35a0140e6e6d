"""Shapes of Qwen3.5, 3.6 and Qwen3-Next models: the tensors and the metadata of a converted GGUF.

Names and shapes of tensors are those that llama.cpp's src/models/qwen35.cpp, qwen35moe.cpp and qwen3next.cpp load; the
metadata is that of its conversion/qwen.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

RMS_EPS = 1e-6
CONV_KERNEL = 4
ATTENTION_INTERVAL = 4  # three gated delta net layers, then one of full attention


class Tensor(NamedTuple):
    """A tensor to write. ne: its shape in ggml's order, the row length first."""

    name: str
    ne: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.ne)


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model: every feed-forward network is a mixture of experts (n_expert …), or has n_ff units.

    next: a Qwen3-Next, which has experts, no M-RoPE (rope_sections) and one matrix for beta and alpha.
    """

    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    rope_sections: tuple[int, ...]
    linear_k_heads: int
    linear_v_heads: int
    linear_head_dim: int
    n_ff: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0
    tied: bool = False
    n_ctx: int = 262_144
    rope_base: float = 10_000_000.0
    head: bool = True
    next: bool = False

    @property
    def arch(self) -> str:
        if self.next:
            return "qwen3next"
        return "qwen35moe" if self.n_expert else "qwen35"

    @property
    def recurrent_layers(self) -> list[bool]:
        """Return for each block, the head's included, whether it is a gated delta net."""
        trunk = [(i + 1) % ATTENTION_INTERVAL != 0 for i in range(self.n_layer)]
        return trunk + [False] * self.head

    @property
    def n_params(self) -> int:
        return sum(tensor.size for tensor in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Return all tensors of the file, in its order."""
        yield Tensor("token_embd.weight", (self.n_embd, self.n_vocab))
        for i, recurrent in enumerate(self.recurrent_layers):
            yield Tensor(f"blk.{i}.attn_norm.weight", (self.n_embd,))
            yield from self._delta_net(f"blk.{i}") if recurrent else self._attention(f"blk.{i}")
            yield Tensor(f"blk.{i}.post_attention_norm.weight", (self.n_embd,))
            yield from self._experts(f"blk.{i}") if self.n_expert else self._ffn(f"blk.{i}")
        if self.head:
            yield from self._nextn(f"blk.{self.n_layer}.nextn")
        yield Tensor("output_norm.weight", (self.n_embd,))
        if not self.tied:
            yield Tensor("output.weight", (self.n_embd, self.n_vocab))

    def _attention(self, block: str) -> Iterator[Tensor]:
        q_dim, kv_dim = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        yield Tensor(f"{block}.attn_q.weight", (self.n_embd, 2 * q_dim))  # queries and their output gates
        yield Tensor(f"{block}.attn_k.weight", (self.n_embd, kv_dim))
        yield Tensor(f"{block}.attn_v.weight", (self.n_embd, kv_dim))
        yield Tensor(f"{block}.attn_q_norm.weight", (self.head_dim,))
        yield Tensor(f"{block}.attn_k_norm.weight", (self.head_dim,))
        yield Tensor(f"{block}.attn_output.weight", (q_dim, self.n_embd))

    def _delta_net(self, block: str) -> Iterator[Tensor]:
        k_dim, v_dim = self.linear_k_heads * self.linear_head_dim, self.linear_v_heads * self.linear_head_dim
        yield Tensor(f"{block}.attn_qkv.weight", (self.n_embd, 2 * k_dim + v_dim))
        yield Tensor(f"{block}.attn_gate.weight", (self.n_embd, v_dim))
        yield Tensor(f"{block}.ssm_conv1d.weight", (CONV_KERNEL, 2 * k_dim + v_dim))
        yield Tensor(f"{block}.ssm_dt.bias", (self.linear_v_heads,))
        yield Tensor(f"{block}.ssm_a", (self.linear_v_heads,))
        if self.next:
            yield Tensor(f"{block}.ssm_ba.weight", (self.n_embd, 2 * self.linear_v_heads))
        else:
            yield Tensor(f"{block}.ssm_beta.weight", (self.n_embd, self.linear_v_heads))
            yield Tensor(f"{block}.ssm_alpha.weight", (self.n_embd, self.linear_v_heads))
        yield Tensor(f"{block}.ssm_norm.weight", (self.linear_head_dim,))
        yield Tensor(f"{block}.ssm_out.weight", (v_dim, self.n_embd))

    def _ffn(self, block: str) -> Iterator[Tensor]:
        yield Tensor(f"{block}.ffn_gate.weight", (self.n_embd, self.n_ff))
        yield Tensor(f"{block}.ffn_up.weight", (self.n_embd, self.n_ff))
        yield Tensor(f"{block}.ffn_down.weight", (self.n_ff, self.n_embd))

    def _experts(self, block: str) -> Iterator[Tensor]:
        yield Tensor(f"{block}.ffn_gate_inp.weight", (self.n_embd, self.n_expert))
        yield Tensor(f"{block}.ffn_gate_exps.weight", (self.n_embd, self.n_ff_expert, self.n_expert))
        yield Tensor(f"{block}.ffn_up_exps.weight", (self.n_embd, self.n_ff_expert, self.n_expert))
        yield Tensor(f"{block}.ffn_down_exps.weight", (self.n_ff_expert, self.n_embd, self.n_expert))
        yield Tensor(f"{block}.ffn_gate_inp_shexp.weight", (self.n_embd,))
        yield Tensor(f"{block}.ffn_gate_shexp.weight", (self.n_embd, self.n_ff_shared))
        yield Tensor(f"{block}.ffn_up_shexp.weight", (self.n_embd, self.n_ff_shared))
        yield Tensor(f"{block}.ffn_down_shexp.weight", (self.n_ff_shared, self.n_embd))

    def _nextn(self, block: str) -> Iterator[Tensor]:
        """Return the tensors that make the last block a head; it shares embeddings and output with the trunk."""
        yield Tensor(f"{block}.eh_proj.weight", (2 * self.n_embd, self.n_embd))
        yield Tensor(f"{block}.enorm.weight", (self.n_embd,))
        yield Tensor(f"{block}.hnorm.weight", (self.n_embd,))
        yield Tensor(f"{block}.shared_head_norm.weight", (self.n_embd,))

    def metadata(self) -> dict[str, str | int | float | list[int] | list[bool]]:
        """Return the keys of the architecture, without the "qwen35." before each."""
        keys: dict[str, str | int | float | list[int] | list[bool]] = {
            "block_count": len(self.recurrent_layers),
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": RMS_EPS,
            "attention.recurrent_layers": self.recurrent_layers,
            "full_attention_interval": ATTENTION_INTERVAL,
            "rope.dimension_count": self.n_rot,
            "rope.freq_base": self.rope_base,
            "ssm.conv_kernel": CONV_KERNEL,
            "ssm.state_size": self.linear_head_dim,
            "ssm.group_count": self.linear_k_heads,
            "ssm.time_step_rank": self.linear_v_heads,
            "ssm.inner_size": self.linear_v_heads * self.linear_head_dim,
        }
        if not self.next:
            keys["rope.dimension_sections"] = [*self.rope_sections, 0]
        if self.n_expert:
            keys["expert_count"] = self.n_expert
            keys["expert_used_count"] = self.n_expert_used
            keys["expert_feed_forward_length"] = self.n_ff_expert
            keys["expert_shared_feed_forward_length"] = self.n_ff_shared
        else:
            keys["feed_forward_length"] = self.n_ff
        if self.head:
            keys["nextn_predict_layers"] = 1
        return keys


# The tiny ones have an unequal number of everything that could be mixed up unnoticed if it were equal.
_TINY = Shape(
    n_layer=4,
    n_embd=96,
    n_vocab=512,
    n_head=4,
    n_head_kv=2,
    head_dim=64,
    n_rot=32,
    rope_sections=(6, 5, 5),
    linear_k_heads=2,
    linear_v_heads=4,
    linear_head_dim=32,
    n_ff=192,
    tied=True,
    n_ctx=4096,
)

_TINY_MOE = replace(_TINY, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=64, n_ff_shared=128, tied=False)

PRESETS = {
    "tiny": _TINY,
    "tiny-moe": _TINY_MOE,
    "tiny-next": replace(_TINY_MOE, rope_sections=(), next=True),
    # the shipped model's, but wider, and with the long context of the large ones: for benches on small machines
    "7m": Shape(
        n_layer=8,
        n_embd=256,
        n_vocab=3072,
        n_head=4,
        n_head_kv=2,
        head_dim=64,
        n_rot=32,
        rope_sections=(6, 5, 5),
        linear_k_heads=2,
        linear_v_heads=6,
        linear_head_dim=64,
        n_ff=448,
        tied=True,
    ),
    # config.json of huggingface.co/Qwen/Qwen3.5-0.8B; without the head 752 M parameters, as llama-bench counts them
    "qwen3.5-0.8b": Shape(
        n_layer=24,
        n_embd=1024,
        n_vocab=248_320,
        n_head=8,
        n_head_kv=2,
        head_dim=256,
        n_rot=64,
        rope_sections=(11, 11, 10),
        linear_k_heads=16,
        linear_v_heads=16,
        linear_head_dim=128,
        n_ff=3584,
        tied=True,
    ),
    # config.json and model card of huggingface.co/Qwen/Qwen3.6-27B
    "qwen3.6-27b": Shape(
        n_layer=64,
        n_embd=5120,
        n_vocab=248_320,
        n_head=24,
        n_head_kv=4,
        head_dim=256,
        n_rot=64,
        rope_sections=(11, 11, 10),
        linear_k_heads=16,
        linear_v_heads=48,
        linear_head_dim=128,
        n_ff=17_408,
    ),
    # model card of huggingface.co/Qwen/Qwen3.6-35B-A3B, and the header of its GGUF in ggml-org/llama.cpp#22673
    "qwen3.6-35b-a3b": Shape(
        n_layer=40,
        n_embd=2048,
        n_vocab=248_320,
        n_head=16,
        n_head_kv=2,
        head_dim=256,
        n_rot=64,
        rope_sections=(11, 11, 10),
        linear_k_heads=16,
        linear_v_heads=32,
        linear_head_dim=128,
        n_expert=256,
        n_expert_used=8,
        n_ff_expert=512,
        n_ff_shared=512,
    ),
    # config.json of huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct
    "qwen3-next-80b-a3b": Shape(
        n_layer=48,
        n_embd=2048,
        n_vocab=151_936,
        n_head=16,
        n_head_kv=2,
        head_dim=256,
        n_rot=64,
        rope_sections=(),
        linear_k_heads=16,
        linear_v_heads=32,
        linear_head_dim=128,
        n_expert=512,
        n_expert_used=10,
        n_ff_expert=512,
        n_ff_shared=512,
        next=True,
    ),
}
