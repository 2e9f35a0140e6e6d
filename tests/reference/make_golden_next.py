"""Computes the golden outputs of a small qwen3next, as make_golden.py does of the shipped model.

    python tests/reference/make_golden_next.py

The model is that of tests/makers/next_oracle.py; `model_sha256` is of its tensors.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from torch import Tensor
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextDecoderLayer,
    Qwen3NextForCausalLM,
    Qwen3NextRMSNorm,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "reference")]

from make_golden import BLOCK_NAMES, MtpHead, common_config, keys_of, read_states, write_golden  # noqa: E402
from makers.next_oracle import make_next_oracle, weights_sha256  # noqa: E402

# of one token, of some, and of more than the chunk of the gated delta net
PROMPTS = {
    name: random.Random(name).choices(range(256), k=n)
    for name, n in (("one", 1), ("line", 7), ("chat", 33), ("code", 70))
}

NEXT_BLOCK_NAMES = BLOCK_NAMES | {
    "attn_qkv.weight": "linear_attn.qkv",  # join() makes in_proj_qkvz of this and z
    "attn_gate.weight": "linear_attn.z",
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_exps.weight": "mlp.experts.gate",  # join() makes gate_up_proj of this and up
    "ffn_up_exps.weight": "mlp.experts.up",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}


def read_config(reader: GGUFReader) -> Qwen3NextConfig:
    """The trunk's configuration in transformers' terms."""
    keys = keys_of(reader)
    return Qwen3NextConfig(
        num_experts=keys["expert_count"],
        num_experts_per_tok=keys["expert_used_count"],
        moe_intermediate_size=keys["expert_feed_forward_length"],
        shared_expert_intermediate_size=keys["expert_shared_feed_forward_length"],
        experts_implementation="eager",
        **common_config(reader),
    )


def undo_conversion(name: str, value: Tensor, config: Qwen3NextConfig) -> Tensor:
    """The inverse of `modify_tensors` of Qwen3NextModel in llama.cpp's conversion/qwen.py, tensor by tensor."""
    if name.endswith("A_log"):
        return torch.log(-value)
    if name.endswith("conv1d.weight"):
        return value[:, None]
    if name.endswith("shared_expert_gate.weight"):
        return value[None]
    if "norm" in name and not name.endswith("linear_attn.norm.weight"):
        return value - 1
    return value


def join(state: dict[str, Tensor], config: Qwen3NextConfig) -> None:
    """Makes one tensor of those that conversion split."""
    n_keys = config.linear_num_key_heads
    key_dim = n_keys * config.linear_key_head_dim
    for name in [name for name in state if name.endswith(".linear_attn.qkv")]:
        layer = name.removesuffix("qkv")
        qkv, z = state.pop(name), state.pop(f"{layer}z")
        # a key head's query, key, values and gates lie together in the checkpoint
        parts = [
            p.reshape(n_keys, -1, config.hidden_size)
            for p in (qkv[:key_dim], qkv[key_dim : 2 * key_dim], qkv[2 * key_dim :], z)
        ]
        state[f"{layer}in_proj_qkvz.weight"] = torch.cat(parts, dim=1).flatten(0, 1)
    for name in [name for name in state if name.endswith(".experts.gate")]:
        experts = name.removesuffix("gate")
        state[f"{experts}gate_up_proj"] = torch.cat([state.pop(name), state.pop(f"{experts}up")], dim=1)


def load(path: Path) -> tuple[Any, MtpHead]:
    """Trunk and head of a GGUF file, in the default dtype."""
    reader = GGUFReader(path)
    config = read_config(reader)
    trunk, head = Qwen3NextForCausalLM(config), MtpHead(config, Qwen3NextDecoderLayer, Qwen3NextRMSNorm)
    for module, state in zip(
        (trunk, head), read_states(reader, config, NEXT_BLOCK_NAMES, undo_conversion), strict=True
    ):
        join(state, config)
        module.load_state_dict(state)
    return trunk.eval(), head.eval()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "next.gguf"
        make_next_oracle(model)
        write_golden(Path(__file__).with_name("golden_next.npz"), weights_sha256(model), model, load, PROMPTS)
