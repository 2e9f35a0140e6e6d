"""Qwen's own vocabulary, from the pinned source distribution of llama.cpp, and a tiny model with it.

models/ggml-vocab-qwen35.gguf has the 151,643 tokens and the merges of Qwen 2 to 3, and names Qwen3.5's pre-tokenizer.
It has three added tokens; the others are set here as Qwen3's tokenizer.json names them.
"""

from __future__ import annotations

import struct
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

from gguf import TokenType

from makers.gguf_parts import GGUF, parse, tensor_bytes
from makers.make_model import make_model
from makers.model_shapes import PRESETS

VENDOR = Path(__file__).resolve().parents[2] / "vendor"
FIRST_ADDED = 151_643
ADDED = (  # with whether it is a control token
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", True),
    ("<|fim_middle|>", True),
    ("<|fim_suffix|>", True),
    ("<|fim_pad|>", True),
    ("<|repo_name|>", True),
    ("<|file_sep|>", True),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
)
N_VOCAB = FIRST_ADDED + len(ADDED)
_SHAPE = replace(
    PRESETS["tiny"], n_embd=32, n_head=2, n_head_kv=1, head_dim=32, n_rot=16, rope_sections=(3, 3, 2), n_ff=32
)


def read_vocab() -> GGUF:
    """Return the metadata keys of the vocabulary, as a vocabulary-only file has them: the base tokens and ADDED."""
    sys.path.insert(0, str(VENDOR))
    from index import fetch
    from sources import Paths, Pin

    paths = Paths.default()
    with tarfile.open(fetch(paths, Pin.read(paths.requirements))) as archive:
        member = next(member for member in archive if member.name.endswith("/models/ggml-vocab-qwen35.gguf"))
        file = archive.extractfile(member)
        assert file is not None
        found = parse(file.read())
    kinds = [TokenType.CONTROL if control else TokenType.USER_DEFINED for _, control in ADDED]
    for key in found.keys:
        if key.name == b"tokenizer.ggml.tokens":
            key.values[FIRST_ADDED:] = [text.encode() for text, _ in ADDED]
        if key.name == b"tokenizer.ggml.token_type":
            key.values[FIRST_ADDED:] = [struct.pack("<i", kind) for kind in kinds]
    return found


def write_model(path: Path) -> None:
    """Write a model of random weights with this vocabulary: 11 MB."""
    make_model(_SHAPE, path)
    model, vocab = parse(path.read_bytes()), read_vocab()
    model.keys = [key for key in model.keys if not key.name.startswith(b"tokenizer.")]
    model.keys += [key for key in vocab.keys if key.name.startswith(b"tokenizer.")]
    embeddings = next(tensor for tensor in model.tensors if tensor.name == b"token_embd.weight")
    embeddings.shape[1] = N_VOCAB
    embeddings.data = bytes(tensor_bytes(embeddings.shape, embeddings.kind))
    path.write_bytes(model.encoded())
