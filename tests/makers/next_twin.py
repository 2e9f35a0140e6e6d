"""A dense qwen35 written as a qwen3next that computes the same, so that the shipped model's head fits it too.

Its only expert has the feed-forward weights, and the shared expert writes zeros. M-RoPE of text is RoPE. Value head j
of key head k, of r for each of K, is at j*K + k in a qwen35 and at k*r + j in a qwen3next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray

from makers.gguf_read import open_gguf
from makers.gguf_variants import item_type

Floats = NDArray[np.float32]
N_SHARED = 32  # units of the shared expert


def write_next_twin(source: Path, target: Path, *, joined: bool = False) -> None:
    """Write a dense qwen35 as a qwen3next in F32.

    joined: with one matrix for q, k, v and z, as early files have it.
    """
    reader = open_gguf(source)
    keys = {name.removeprefix("qwen35."): field for name, field in reader.fields.items()}
    n_keys, n_values = (int(keys[f"ssm.{name}"].contents()) for name in ("group_count", "time_step_rank"))

    writer = GGUFWriter(target, "qwen3next")
    for name, field in keys.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "rope.dimension_sections"):
            continue
        own = name != field.name
        writer.add_key_value(f"qwen3next.{name}" if own else name, field.contents(), field.types[0], item_type(field))
    more = {
        "expert_count": 1,
        "expert_used_count": 1,
        "expert_feed_forward_length": keys["feed_forward_length"].contents(),
        "expert_shared_feed_forward_length": N_SHARED,
    }
    for name, number in more.items():
        writer.add_key_value(f"qwen3next.{name}", number, GGUFValueType.UINT32)

    tensors = {t.name: np.array(dequantize(t.data, t.tensor_type), np.float32) for t in reader.tensors}
    for name, values in _all(tensors, n_keys, n_values // n_keys, joined):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _all(tensors: dict[str, Floats], n_keys: int, per_key: int, joined: bool) -> Iterator[tuple[str, Floats]]:
    for block in sorted({name.rsplit(".ssm_a", 1)[0] for name in tensors if name.endswith(".ssm_a")}):
        _delta_net(tensors, block, n_keys, per_key, joined)
    for name, values in tensors.items():
        block, _, part = name.partition(".ffn_")
        if not part:
            yield name, values
            continue
        part = part.removesuffix(".weight")
        yield f"{block}.ffn_{part}_exps.weight", values[None]
        yield (
            f"{block}.ffn_{part}_shexp.weight",
            np.zeros_like(values[:N_SHARED] if part != "down" else values[:, :N_SHARED]),
        )
        if part == "gate":
            yield f"{block}.ffn_gate_inp.weight", np.zeros_like(values[:1])
            yield f"{block}.ffn_gate_inp_shexp.weight", np.zeros_like(values[0])


def _delta_net(tensors: dict[str, Floats], block: str, n_keys: int, per_key: int, joined: bool) -> None:
    """Return the tensors of a delta net in the order of a qwen3next."""

    def grouped(values: Any) -> Any:
        """Group rows by key head: [n_keys, rows of its value heads, …]."""
        heads = values.reshape(per_key, n_keys, -1, *values.shape[1:]).swapaxes(0, 1)
        return heads.reshape(n_keys, -1, *values.shape[1:])

    def flat(values: Any) -> Any:
        return values.reshape(-1, *values.shape[2:])

    def take(name: str) -> Any:
        return tensors.pop(f"{block}.{name}")

    def put(name: str, values: Any) -> None:
        tensors[f"{block}.{name}"] = values

    for name in ("ssm_a", "ssm_dt.bias"):
        put(name, flat(grouped(take(name))))
    put("ssm_ba.weight", flat(np.concatenate([grouped(take(f"ssm_{x}.weight")) for x in ("beta", "alpha")], axis=1)))
    put("ssm_out.weight", flat(grouped(take("ssm_out.weight").T)).T)

    z = grouped(take("attn_gate.weight"))
    n_key_rows = len(tensors[f"{block}.attn_qkv.weight"]) - z.shape[0] * z.shape[1]
    for name in ("ssm_conv1d.weight", "attn_qkv.weight"):
        rows = take(name)
        q, k = rows[:n_key_rows].reshape(2, n_keys, -1, rows.shape[1])
        v = grouped(rows[n_key_rows:])
        if name == "attn_qkv.weight" and joined:
            put("ssm_in.weight", flat(np.concatenate([q, k, v, z], axis=1)))
        else:
            put(name, np.concatenate([flat(q), flat(k), flat(v)]))
    if not joined:
        put("attn_gate.weight", flat(z))
