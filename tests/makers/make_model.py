"""A writer of GGUF files with random weights in the shape of a Qwen3.5, 3.6 or Qwen3-Next model, with its MTP head.

The same arguments make the same bytes, whatever the number of threads. Memory stays below 2 GB. Any text tokenizes
(byte by byte), and the model generates noise: speed and correctness can be measured, acceptance cannot. The command
line is tools/models/make_model.py.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

from makers.model_shapes import PRESETS, Shape, Tensor
from makers.random_weights import CHUNK, TYPES, Bytes, chunk, n_bytes
from makers.weight_mixes import MIXES, is_known, tensor_types

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MIXED = ("q3_k", "q4_k", "q5_k")  # files of these types have names that end in S, M or L
WEIGHTS = (*TYPES, *(name for name in MIXES if name not in TYPES))
MAX_THREADS = 16  # each thread holds two chunks at most


def make_model(
    shape: str | Shape,
    path: Path,
    *,
    weight_type: str = "q8_0",
    head: bool = True,
    seed: int = 0,
    split_max_tensors: int = 0,
    weights: bool = True,
    threads: int | None = None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[Path]:
    """Write a model of a shape, or of a preset by its name, and return its files; the first is the one to load.

    weight_type: one of MIXES, or one of TYPES, or several of them with "+" between, which the matrices have in turns.
    head: with the multi-token-prediction head.
    split_max_tensors: the maximum number of tensors in a file, 0 for one file; else PATH.gguf becomes
        PATH-00001-of-0000N.gguf.
    weights: if False, the weights are a hole in the file that takes no disk space, for tests that do not run the model.
    on_progress: called with the bytes of weights written so far, and their total.

    Raises ValueError for an unknown preset or type. When it fails, it leaves no file behind.
    """
    if isinstance(shape, str) and shape not in PRESETS:
        raise ValueError(f"no preset is called {shape!r}, there are {', '.join(PRESETS)}")
    if not is_known(weight_type):
        raise ValueError(f"weights cannot be {weight_type!r}, but {', '.join(WEIGHTS)}")
    name = shape if isinstance(shape, str) else "custom"
    shape = replace(PRESETS[shape] if isinstance(shape, str) else shape, head=head)
    writer = GGUFWriter(path, shape.arch, split_max_tensors=split_max_tensors)
    _add_metadata(writer, shape, name, weight_type)
    tensors = tensor_types(shape, weight_type)
    for tensor, kind in tensors:
        writer.add_tensor_info(
            tensor.name, tensor.ne[::-1], np.dtype(np.float32), n_bytes(tensor.size, kind), raw_dtype=kind
        )
    paths = [Path(file) for file in writer.format_shard_names(path)]
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if not weights:
            _leave_holes(writer)
            writer.close()
            return paths
        chunks = _make_ahead(tensors, seed, threads or min(MAX_THREADS, os.cpu_count() or 1))
        _write_tensors(writer, chunks, on_progress)
    except BaseException:
        writer.close()
        for file in paths:
            file.unlink(missing_ok=True)
        raise
    writer.close()
    return paths


def _add_metadata(writer: GGUFWriter, shape: Shape, name: str, weight_type: str) -> None:
    tokens, types = vocabulary(shape.n_vocab)
    metadata: dict[str, Any] = {
        "general.type": "model",
        "general.name": f"random weights, {name}",
        "general.description": "Random weights in a real model's shape, for tests and benches.",
        "general.file_type": _file_type(weight_type),
        "general.quantization_version": 2,
        **{f"{shape.arch}.{key}": value for key, value in shape.metadata().items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2" if shape.next else "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["Ġ Ġ"],  # llama.cpp refuses a file without any
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        adders[type(value)](key, value)


def _file_type(weights: str) -> int:
    """Return the number of llama.cpp's name for a file with these weights (llama_ftype in include/llama.h)."""
    weights, _, _ = weights.partition("+")
    name = weights.removeprefix("mix-").removeprefix("ud-").replace("-", "_").replace("k_xl", "k_m")
    if name == "q2_0":
        return 41  # gguf 0.19 has no name for it
    others = {"f32": "ALL_F32", "q2_k_m": "MOSTLY_Q2_K", "mxfp4": "MOSTLY_MXFP4_MOE"}
    return int(LlamaFileType[others.get(name, f"MOSTLY_{name.upper()}{'_M' if name in _MIXED else ''}")])


def vocabulary(n: int) -> tuple[list[str], list[int]]:
    """Return n tokens and their types: one for each byte, numbered words, and control tokens at the end.

    Bytes are written as in GPT-2: those that print in Latin-1 as themselves, the others, in order, as the characters
    from U+0100 on.
    """
    plain = [byte for byte in range(256) if 0x21 <= byte <= 0x7E or byte in (*range(0xA1, 0xAD), *range(0xAE, 0x100))]
    tokens = [chr(byte) for byte in plain] + [chr(0x100 + i) for i in range(256 - len(plain))] + ["ĠĠ"]
    tokens += [f"Ġ{i:x}" for i in range(len(tokens), n - len(CONTROL_TOKENS))]
    types = [int(TokenType.NORMAL)] * len(tokens) + [int(TokenType.CONTROL)] * len(CONTROL_TOKENS)
    return [*tokens, *CONTROL_TOKENS], types


def _write_tensors(writer: GGUFWriter, chunks: Iterator[Bytes], on_progress: Callable[[int, int], object]) -> None:
    """Write the weights after the header. GGUFWriter would need each tensor whole, and one may have 5 GB."""
    assert writer.fout is not None  # the header is written
    done, total = 0, sum(info.nbytes for tensors in writer.tensors for info in tensors.values())
    for file, tensors in zip(writer.fout, writer.tensors, strict=True):
        writer.write_padding(file, file.tell())
        for info in tensors.values():
            left = info.nbytes
            while left:
                data = next(chunks)
                data.tofile(file)
                left -= data.nbytes
                done += data.nbytes
                on_progress(done, total)
            writer.write_padding(file, info.nbytes)


def _leave_holes(writer: GGUFWriter) -> None:
    assert writer.fout is not None  # the header is written
    for file, tensors in zip(writer.fout, writer.tensors, strict=True):
        writer.write_padding(file, file.tell())
        size = sum(GGUFWriter.ggml_pad(info.nbytes, writer.data_alignment) for info in tensors.values())
        file.truncate(file.tell() + size)


def _make_ahead(tensors: Sequence[tuple[Tensor, GGMLQuantizationType]], seed: int, threads: int) -> Iterator[Bytes]:
    """Yield all chunks of all tensors in order; threads make the next ones meanwhile."""

    def job(number: int, tensor: Tensor, kind: GGMLQuantizationType, start: int) -> Bytes:
        return chunk(tensor, kind, start, (seed, number, start // CHUNK))

    waiting: deque[Future[Bytes]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for number, (tensor, kind) in enumerate(tensors):
            for start in range(0, tensor.size, CHUNK):
                waiting.append(pool.submit(job, number, tensor, kind, start))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
