"""Makes damaged or mismatched pairs of a model and a head for head_pairs.py; a seed always makes the same pairs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from fuzz_files import BASES
from gguf_damage import damaged
from makers.gguf_parts import GGUF, parse
from makers.head_file import read_tensor, tied_output, write_head, write_pair
from makers.make_model import make_model
from makers.model_shapes import Shape
from numpy.typing import NDArray

SHAPES = tuple((replace(shape, head=True), kind) for shape, kind in BASES)
_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")  # types that the gguf package can write
_OTHER: dict[str, tuple[Any, ...]] = {  # fields of a shape, and values for a head of another model
    "n_embd": (16, 64, 33),
    "n_vocab": (260, 300, 512),
    "n_head": (1, 4),
    "n_head_kv": (2,),
    "head_dim": (16, 64),
    "n_rot": (8, 32),
    "rope_sections": ((4, 4, 0), (8, 0, 0), (0, 0, 8)),
    "rope_base": (10_000.0, 1.0),
    "n_ff": (16, 64, 96),
    "n_expert": (0, 2, 8),
    "n_expert_used": (1, 4),
    "n_ff_expert": (64,),
    "n_layer": (1, 3, 8),
    "tied": (True, False),
    "n_ctx": (16, 262_144),
}


@dataclass(frozen=True)
class Base:
    """A sound model, its trunk and its head: as files, and parsed."""

    shape: Shape
    kind: str
    whole: Path
    trunk: Path
    head: Path
    trunk_parts: GGUF
    head_parts: GGUF


class Pair(NamedTuple):
    """The files of a model and a head. damage: the changes in them."""

    model: Path
    head: Path
    damage: list[str]


def make_bases(folder: Path) -> list[Base]:
    """Make the sound models from which all pairs are made."""
    bases = []
    for i, (shape, kind) in enumerate(SHAPES):
        (whole,) = make_model(shape, folder / f"{i}.gguf", weight_type=kind, seed=i)
        trunk, head = write_pair(whole, folder)
        bases.append(Base(shape, kind, whole, trunk, head, parse(trunk.read_bytes()), parse(head.read_bytes())))
    return bases


def make_pair(seed: int, index: int, bases: list[Base], place: Path) -> Pair:
    """Write the two files of a pair into the empty folder `place`."""
    rng = Random(f"{seed}:{index}")
    base, kinds = bases[index % len(bases)], list(RECIPES)
    (recipe,) = rng.choices(kinds, [RECIPES[kind] for kind in kinds])
    model, head = place / "model.gguf", place / "mtp.gguf"
    shutil.copy(base.trunk if rng.random() < 0.8 else base.whole, model)
    made = recipe(rng, bases, base, model, head)
    return Pair(made.model, made.head, [f"{recipe.__name__}, base {index % len(bases)}", *made.damage])


def _damaged_head(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    data, done = damaged(base.head_parts, rng)
    head.write_bytes(data)
    return Pair(model, head, done)


def _damaged_model(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    data, done = damaged(base.trunk_parts, rng)
    model.write_bytes(data)
    if rng.random() < 0.3:
        pair = _damaged_head(rng, bases, base, model, head)
        return Pair(model, head, [*done, "head:", *pair.damage])
    shutil.copy(base.head, head)
    return Pair(model, head, done)


def _head_of_another_base(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    other = rng.randrange(len(bases))
    renamed = rng.random() < 0.5  # with the architecture of this model
    file = bases[other].head_parts.copy()
    if renamed:
        old, new = (each.shape.arch.encode() for each in (bases[other], base))
        for key in file.keys:
            if key.name == b"general.architecture":
                key.values = [new]
            key.name = key.name.replace(old + b".", new + b".")
    head.write_bytes(file.encoded())
    return Pair(model, head, [f"of base {other}{', as of this family' * renamed}"])


def _head_of_another_shape(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    changed = {name: rng.choice(_OTHER[name]) for name in rng.sample(sorted(_OTHER), rng.choice((1, 1, 2, 3)))}
    shape = replace(base.shape, **changed)
    if shape.n_expert and not shape.n_ff_expert:
        shape = replace(shape, n_expert_used=1, n_ff_expert=32, n_ff_shared=32)
    if not shape.n_expert and not shape.n_ff:
        shape = replace(shape, n_ff=32)
    (whole,) = make_model(shape, head.with_name("whole.gguf"), weight_type=base.kind, threads=1)
    write_head(whole, head)
    whole.unlink()
    return Pair(model, head, [f"{changed}"])


def _head_of_other_types(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    patterns = ("*", "token_embd.weight", "output.weight", "blk.*.attn_*", "blk.*.ffn_*", "blk.*.eh_proj.weight")
    types = {pattern: rng.choice(_TYPES) for pattern in rng.sample(patterns, rng.randint(1, 4))}
    own = tied_output(base.whole) if base.shape.tied and rng.random() < 0.5 else {}
    write_head(base.whole, head, types=types, tensors=own)
    return Pair(model, head, [f"{types}, with {sorted(own)}"])


def _head_named_otherwise(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    """Rename or remove tensors and keys of a head."""
    arch, n = base.shape.arch, base.shape.n_layer
    names = [tensor.name.decode() for tensor in base.head_parts.tensors]
    rename, tensors = {}, {}
    for name in rng.sample(names, rng.choice((0, 1, 1, 2, len(names)))):
        own = name.removeprefix(f"blk.{n}.")
        rename[name] = rng.choice(
            (f"mtp.{own}", f"model.mtp.{own}", f"blk.0.{own}", f"blk.{n + 1}.{own}", own, f"mtp.0.{own}")
        )
    for name in rng.sample(names, rng.choice((0, 0, 1, 2))):
        tensors[name] = None
    keys = {
        f"{arch}.block_count": rng.choice((0, 1, n, n + 2, 1000)),
        f"{arch}.nextn_predict_layers": rng.choice((None, 0, 1, 2, 5)),
        f"{arch}.attention.recurrent_layers": None,
        f"{arch}.mtp_num_layers": 1,
        "tokenizer.ggml.tokens": None,
        "tokenizer.ggml.pre": rng.choice(("qwen2", "gpt-2", "x")),
        "general.type": rng.choice(("adapter", "mmproj", "imatrix")),
        f"{arch}.embedding_length": rng.choice((None, 64)),
    }
    metadata = {key: keys[key] for key in rng.sample(sorted(keys), rng.choice((0, 1, 2)))}
    write_head(base.whole, head, rename=rename, tensors=tensors, metadata=metadata)
    return Pair(model, head, [f"{rename}, without {sorted(tensors)}, {metadata}"])


def _head_with_odd_weights(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    """Change weights of a head so that it predicts nothing: norms minus 1, zeros, noise, NaN."""
    names = [tensor.name.decode() for tensor in base.head_parts.tensors]
    block = [name for name in names if name.startswith("blk.")]
    chosen = rng.sample(block, rng.choice((1, 1, 3, len(block))))
    value = rng.choice((0.0, 1.0, -1.0, 1e30, -1e30, float("inf"), float("nan"), 1e-40))
    tensors: dict[str, NDArray[Any] | None] = {}
    for name in chosen:
        old = read_tensor(base.head, name)
        noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(old.shape, dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            tensors[name] = rng.choice((np.full_like(old, value), old - 1, old * np.float32(value), noise * 100))
    write_head(base.whole, head, tensors=tensors)
    return Pair(model, head, [f"{chosen}, {value}"])


def _head_with_a_short_output(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    rows = rng.choice((0, 1, 32, 200, base.shape.n_vocab, base.shape.n_vocab + 32))
    output = np.zeros((rows, base.shape.n_embd), np.float32)
    table = np.array([rng.choice((i, 0, -1, 10**6)) for i in range(rows)], rng.choice((np.int64, np.int32)))
    tensors: dict[str, NDArray[Any] | None] = {"output.weight": output}
    tensors |= {rng.choice(("d2t", "d2t.weight", "output.d2t")): table} if rng.random() < 0.8 and rows else {}
    write_head(base.whole, head, tensors=tensors)
    return Pair(model, head, [f"output of {rows} rows, {sorted(tensors)}"])


def _head_in_parts(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    """Split a head: sound, or with a missing, wrong or damaged part."""
    parts = write_head(base.whole, head, split_max_tensors=rng.choice((1, 5, 12)))
    part = rng.choice(parts)
    match rng.randrange(5):
        case 0:
            done = "sound"
        case 1:
            part.unlink()
            done = f"without {part.name}"
        case 2:
            other = rng.choice(parts)
            shutil.copyfile(base.trunk if other == part else other, part)
            done = f"{part.name} is {other.name}"
        case 3:
            data = part.read_bytes()
            part.write_bytes(data[: rng.randrange(len(data))])
            done = f"{part.name} cut"
        case _:
            data, what = damaged(parse(part.read_bytes()), rng)
            part.write_bytes(data)
            done = f"{part.name}: {what}"
    return Pair(model, rng.choice(parts) if rng.random() < 0.2 else parts[0], [done])


def _files_that_are_something_else(rng: Random, bases: list[Base], base: Base, model: Path, head: Path) -> Pair:
    what = rng.choice(
        ("swapped", "trunk", "whole", "two heads", "itself", "empty", "text", "noise", "folder", "absent")
    )
    match what:
        case "swapped":
            shutil.copy(base.head, model)
            shutil.copy(base.trunk, head)
        case "trunk":
            shutil.copy(base.trunk, head)
        case "whole":
            shutil.copy(rng.choice(bases).whole, head)
        case "two heads":
            shutil.copy(base.head, model)
            shutil.copy(base.head, head)
        case "itself":
            head = model
        case "folder":
            head.mkdir()
        case "absent":
            pass
        case _:
            head.write_bytes({"empty": b"", "text": b"a head\n" * 40, "noise": rng.randbytes(5000)}[what])
    return Pair(model, head, [what])


Recipe = Callable[[Random, list[Base], Base, Path, Path], Pair]
RECIPES: dict[Recipe, int] = {  # with their weights
    _damaged_head: 40,
    _damaged_model: 12,
    _head_of_another_base: 5,
    _head_of_another_shape: 12,
    _head_of_other_types: 5,
    _head_named_otherwise: 10,
    _head_with_odd_weights: 6,
    _head_with_a_short_output: 3,
    _head_in_parts: 5,
    _files_that_are_something_else: 2,
}
