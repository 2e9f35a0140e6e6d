"""Computes the golden outputs that pymtp is tested against, with transformers and a torch MTP head.

    pip install torch==2.13.0 transformers==5.23.0 gguf==0.19.0 tokenizers
    python tests/reference/make_golden.py        # of the shipped model, a qwen35
    python tests/reference/make_golden_next.py   # of a small qwen3next with random weights

Reads the model's GGUF, dequantizes it, takes back what llama.cpp's converter did to the tensors, and runs the
trunk (`transformers`) and the head (tools/models/mtp_head.py) in float64 with the simplest code there is: a full
causal pass for every draft step, no caches. The prompts are cut into tokens by `tokenizers` with the file's own
vocabulary. Nothing of pymtp or llama.cpp takes part.

golden.npz and golden_next.npz hold, for N prompt tokens, a vocabulary of V, and each `prompt` of PROMPTS:

    model_sha256               str             of the weights in the GGUF file
    {prompt}.tokens            (N,) int32
    {prompt}.logits            (N, V) float32  of the trunk
    {prompt}.next              () int32        argmax of the last row: the token the drafts follow
    {prompt}.{tap}.logits      (3, V) float32  of the head, per chained draft step, for tap post_norm and pre_norm
    {prompt}.{tap}.drafts      (3,) int32      their argmax
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tools/models", "tools/models/shipped")]

from makers.next_oracle import weights_sha256  # noqa: E402
from mtp_head import MtpHead  # noqa: E402
from vocabulary import Vocabulary  # noqa: E402

DRAFT_STEPS = 3
TAPS = ("post_norm", "pre_norm")

PROMPTS = {
    "one": "def",  # a single token
    "line": "for line in lines:\n    if",
    "chat": "<|im_start|>user\nWhat is 457 + 86?<|im_end|>\n<|im_start|>assistant\n<think>\n7+6=13\n",
    # A class, unfinished. More than 64 tokens, which is the chunk of the gated delta net.
    "code": (
        "class Counter:\n"
        "    def __init__(self, keys=()):\n"
        "        self.counts = {}\n"
        "        for key in keys:\n"
        "            self.add(key)\n"
        "\n"
        "    def add(self, key):\n"
        "        self.counts[key] = self.counts.get(key, 0) + 1"
    ),
}

# names in a GGUF block and in a checkpoint's layer
BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
TRUNK_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
HEAD_NAMES = {
    "nextn.eh_proj.weight": "fc.weight",
    "nextn.enorm.weight": "pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "norm.weight",
}


class Float64(TorchFunctionMode):
    """Makes float64 of every float32 that code asks for: the models' upcasts are meant for half precision."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        widened = {k: _widen(v) for k, v in (kwargs or {}).items()}
        return func(*map(_widen, args), **widened)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def keys_of(reader: GGUFReader) -> dict[str, Any]:
    """The keys of the file's architecture, without its name before each."""
    prefix = reader.fields["general.architecture"].contents() + "."
    return {k.removeprefix(prefix): field.contents() for k, field in reader.fields.items() if k.startswith(prefix)}


def common_config(reader: GGUFReader) -> dict[str, Any]:
    """Return the settings of both families, by their names in transformers."""
    get = keys_of(reader).__getitem__
    n_layers = get("block_count") - get("nextn_predict_layers")
    recurrent = get("attention.recurrent_layers")[:n_layers]
    return dict(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=get("embedding_length"),
        num_hidden_layers=n_layers,
        layer_types=["linear_attention" if r else "full_attention" for r in recurrent],
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        head_dim=get("attention.key_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        linear_conv_kernel_dim=get("ssm.conv_kernel"),
        linear_num_key_heads=get("ssm.group_count"),
        linear_num_value_heads=get("ssm.time_step_rank"),
        linear_key_head_dim=get("ssm.state_size"),
        linear_value_head_dim=get("ssm.inner_size") // get("ssm.time_step_rank"),
        max_position_embeddings=get("context_length"),
        tie_word_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": get("rope.freq_base"),
            "partial_rotary_factor": get("rope.dimension_count") / get("attention.key_length"),
        },
        attn_implementation="eager",
    )


def read_config(reader: GGUFReader) -> Qwen3_5TextConfig:
    """The trunk's configuration in transformers' terms."""
    keys, common = keys_of(reader), common_config(reader)
    common["rope_parameters"]["mrope_section"] = keys["rope.dimension_sections"][:3]
    return Qwen3_5TextConfig(intermediate_size=keys["feed_forward_length"], **common)


def read_states(
    reader: GGUFReader, config: Any, block_names: dict[str, str], undo: Callable[[str, Tensor, Any], Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The checkpoint's tensors in float64, under their names there: the trunk's and the head's.

    undo: takes a tensor's name in the checkpoint, the converted tensor and the configuration.
    """
    trunk: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float64))
        _, _, in_block = tensor.name.partition("blk.")
        number, _, name = in_block.partition(".")
        if not in_block:
            name, state = TRUNK_NAMES[tensor.name], trunk
        elif int(number) < config.num_hidden_layers:
            name, state = f"model.layers.{number}.{block_names[name]}", trunk
        else:
            name, state = HEAD_NAMES.get(name) or f"layers.0.{block_names[name]}", head
        state[name] = undo(name, value, config)
    if config.tie_word_embeddings:
        trunk["lm_head.weight"] = trunk["model.embed_tokens.weight"]
    return trunk, head


def undo_conversion(name: str, value: Tensor, config: Qwen3_5TextConfig) -> Tensor:
    """The inverse of `modify_tensors` in llama.cpp's conversion/qwen.py (Qwen3NextModel and V-head order)."""
    part = name.partition("linear_attn.")[2].partition(".")[0]
    value_dim = config.linear_num_value_heads * config.linear_value_head_dim
    if part in ("in_proj_a", "in_proj_b", "in_proj_z", "dt_bias"):
        return group_value_heads(value, config)
    if part == "A_log":
        return group_value_heads(torch.log(-value), config)
    if part == "out_proj":
        return group_value_heads(value.T, config).T
    if part in ("in_proj_qkv", "conv1d"):
        value = torch.cat([value[:-value_dim], group_value_heads(value[-value_dim:], config)])
        return value[:, None] if part == "conv1d" else value
    if "norm" in name and part != "norm":
        return value - 1
    return value


def group_value_heads(value: Tensor, config: Qwen3_5TextConfig) -> Tensor:
    """Rows from llama.cpp's order of value heads to the checkpoint's.

    With r value heads for each of K key heads, llama.cpp stores value head j of key head k at j*K + k, the
    checkpoint at k*r + j. A head may have one row or many.
    """
    n_keys = config.linear_num_key_heads
    per_key = config.linear_num_value_heads // n_keys
    heads = value.reshape(per_key, n_keys, -1, *value.shape[1:])
    return heads.transpose(0, 1).reshape(value.shape)


def load(path: Path) -> tuple[Qwen3_5ForCausalLM, MtpHead]:
    """Trunk and head of a GGUF file, in the default dtype."""
    reader = GGUFReader(path)
    config = read_config(reader)
    trunk, head = Qwen3_5ForCausalLM(config), MtpHead(config)
    trunk_state, head_state = read_states(reader, config, BLOCK_NAMES, undo_conversion)
    trunk.load_state_dict(trunk_state)
    head.load_state_dict(head_state)
    return trunk.eval(), head.eval()


def tokenizer_of(path: Path) -> Callable[[str], list[int]]:
    """Return a function that makes tokens of a text as the shipped model does; it reads special tokens as such."""
    fields = GGUFReader(path).fields
    names, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    tokenizer = Vocabulary(names, merges).tokenizer()
    return lambda text: list(tokenizer.encode(text).ids)


def run_trunk(trunk: Any, tokens: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits (N, V), and the hidden rows (N, width) before and after the final norm, by the tap's name."""
    rows = {}

    def keep(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        rows["pre_norm"], rows["post_norm"] = inputs[0][0], output[0]

    hook = trunk.model.norm.register_forward_hook(keep)
    logits = trunk(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    hook.remove()
    return logits, rows


def run_head(trunk: Any, head: MtpHead, tokens: list[int], hidden: Tensor, tap: str) -> tuple[Tensor, list[int]]:
    """Chained draft steps after N+1 `tokens`, with the `hidden` rows (N, width) of the first N.

    Returns logits (DRAFT_STEPS, V) and the drafted tokens.
    """
    tokens, rows = list(tokens), functional.pad(hidden, (0, 0, 1, 0))
    logits, drafts = [], []
    for _ in range(DRAFT_STEPS):
        embedding = trunk.model.embed_tokens(torch.tensor([tokens]))
        rope = trunk.model.rotary_emb(embedding, torch.arange(len(tokens))[None])
        pre_norm, post_norm = head(embedding, rows[None], rope)
        logits.append(trunk.lm_head(post_norm[0, -1]))
        drafts.append(int(logits[-1].argmax()))
        tokens.append(drafts[-1])
        recycled = post_norm if tap == "post_norm" else pre_norm
        rows = torch.cat([rows, recycled[0, -1:]])
    return torch.stack(logits), drafts


def write_golden(
    out: Path, sha256: str, model: Path, load: Callable[[Path], tuple[Any, MtpHead]], prompts: dict[str, list[int]]
) -> None:
    """Computes the golden outputs of a GGUF file for these prompts, and writes them to `out` with its digest."""
    golden: dict[str, Any] = {"model_sha256": sha256}
    torch.set_default_dtype(torch.float64)
    with torch.inference_mode(), Float64():
        trunk, head = load(model)
        for prompt, tokens in prompts.items():
            logits, rows = run_trunk(trunk, tokens)
            following = int(logits[-1].argmax())
            golden[f"{prompt}.tokens"] = np.array(tokens, dtype=np.int32)
            golden[f"{prompt}.logits"] = logits.numpy().astype(np.float32)
            golden[f"{prompt}.next"] = np.int32(following)
            for tap in TAPS:
                drafted, drafts = run_head(trunk, head, [*tokens, following], rows[tap], tap)
                golden[f"{prompt}.{tap}.logits"] = drafted.numpy().astype(np.float32)
                golden[f"{prompt}.{tap}.drafts"] = np.array(drafts, dtype=np.int32)
                best = torch.cat([logits[-1:], drafted]).topk(2).values
                margin = (best[:, 0] - best[:, 1]).min().item()  # near 0 the drafts would hang on rounding
                print(f"{prompt}: {len(tokens)} tokens, next {following}, {tap} drafts {drafts}, margin {margin:.3f}")
    np.savez_compressed(out, **golden)
    print(f"{out}: {out.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "pymtp" / "model" / "demo.gguf")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("golden.npz"))
    args = parser.parse_args()
    tokenize = tokenizer_of(args.model)
    prompts = {name: tokenize(text) for name, text in PROMPTS.items()}
    assert len(prompts["one"]) == 1
    assert len(prompts["code"]) > 64
    write_golden(args.out, weights_sha256(args.model), args.model, load, prompts)


if __name__ == "__main__":
    main()
