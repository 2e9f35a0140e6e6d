"""Models with heads that do not fit or are damaged, in separate files. See fuzz.py.

A pair may be refused when it is loaded, or must generate the tokens of the model without drafts, although the head's
file is replaced meanwhile. A head cannot change a text: if the model generates without it, no request fails with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from fuzz_models import BASES
from makers.gguf_damage import damaged
from makers.gguf_parts import GGUF, parse
from makers.head_file import tied_output, write_head, write_pair
from makers.make_model import make_model
from makers.model_shapes import Shape

from pymtp import LLM, Model, PymtpError, SamplingParams

PROMPT = "def f(a, b):\n    ab"
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
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


@dataclass
class Pair:
    """A model and a head of it in an empty folder. The methods of RECIPES write them, and return what they changed."""

    rng: Random
    bases: list[Base]
    base: Base
    place: Path

    def __post_init__(self) -> None:
        self.model, self.head = self.place / "model.gguf", self.place / "mtp.gguf"
        shutil.copy(self.base.trunk if self.rng.random() < 0.8 else self.base.whole, self.model)

    def damaged_head(self) -> list[Any]:
        data, done = damaged(self.base.head_parts, self.rng)
        self.head.write_bytes(data)
        return done

    def damaged_model(self) -> list[Any]:
        data, done = damaged(self.base.trunk_parts, self.rng)
        self.model.write_bytes(data)
        if self.rng.random() < 0.3:
            return [*done, "head:", *self.damaged_head()]
        shutil.copy(self.base.head, self.head)
        return done

    def head_of_another_base(self) -> list[Any]:
        other = self.rng.choice(self.bases)
        renamed = self.rng.random() < 0.5  # with the architecture of this model
        file = other.head_parts.copy()
        if renamed:
            old, new = (each.shape.arch.encode() for each in (other, self.base))
            for key in file.keys:
                if key.name == b"general.architecture":
                    key.values = [new]
                key.name = key.name.replace(old + b".", new + b".")
        self.head.write_bytes(file.encoded())
        return [f"of {other.whole.name}", renamed]

    def head_of_another_shape(self) -> list[Any]:
        names = self.rng.sample(sorted(_OTHER), self.rng.choice((1, 1, 2, 3)))
        changed = {name: self.rng.choice(_OTHER[name]) for name in names}
        shape = replace(self.base.shape, **changed)
        if shape.n_expert and not shape.n_ff_expert:
            shape = replace(shape, n_expert_used=1, n_ff_expert=32, n_ff_shared=32)
        if not shape.n_expert and not shape.n_ff:
            shape = replace(shape, n_ff=32)
        (whole,) = make_model(shape, self.place / "whole.gguf", weight_type=self.base.kind, threads=1)
        write_head(whole, self.head)
        whole.unlink()
        return [changed]

    def head_of_other_types(self) -> list[Any]:
        patterns = ("*", "token_embd.weight", "output.weight", "blk.*.attn_*", "blk.*.ffn_*", "blk.*.eh_proj.weight")
        types = {pattern: self.rng.choice(_TYPES) for pattern in self.rng.sample(patterns, self.rng.randint(1, 4))}
        own = tied_output(self.base.whole) if self.base.shape.tied and self.rng.random() < 0.5 else {}
        write_head(self.base.whole, self.head, types=types, tensors=own)
        return [types, sorted(own)]

    def head_in_parts(self) -> list[Any]:
        """Split a head: sound, or with a missing, wrong or damaged part."""
        rng = self.rng
        parts = write_head(self.base.whole, self.head, split_max_tensors=rng.choice((1, 5, 12)))
        part, other = rng.choice(parts), rng.choice(parts)
        what = rng.choice(("sound", "missing", "another", "cut", "damaged"))
        if what == "missing":
            part.unlink()
        elif what == "another":
            shutil.copyfile(self.base.trunk if other == part else other, part)
        elif what == "cut":
            data = part.read_bytes()
            part.write_bytes(data[: rng.randrange(len(data))])
        elif what == "damaged":
            data, done = damaged(parse(part.read_bytes()), rng)
            part.write_bytes(data)
            what = f"{done}"
        self.head = rng.choice(parts) if rng.random() < 0.2 else parts[0]
        return [part.name, what]


RECIPES: dict[Callable[[Pair], list[Any]], int] = {  # with how often
    **{Pair.damaged_head: 55, Pair.damaged_model: 16, Pair.head_of_another_base: 5, Pair.head_of_another_shape: 12},
    **{Pair.head_of_other_types: 6, Pair.head_in_parts: 6},
}


def generate_tokens(model: Path, head: Path) -> None:
    """Generate tokens with 2 drafts and without drafts.

    Raises PymtpError if the pair or the model alone is refused; AssertionError if the head changes the tokens.
    """
    plain = _plain_tokens(model)
    with LLM(model, head=head, draft_tokens=2, n_ctx=64, n_threads=1, n_gpu_layers=0) as llm:
        if head != model:
            head.unlink()
            head.write_bytes(b"another file")
        found = _tokens_of(llm)
    if isinstance(plain, PymtpError):
        raise plain
    assert found == plain, f"{found!r}, and without drafts {plain}"


def _plain_tokens(path: Path) -> list[int] | PymtpError:
    try:
        with Model(path, mtp=False, n_gpu_layers=0) as model, LLM(model, draft_tokens=0, n_ctx=64, n_threads=1) as llm:
            return _tokens_of(llm)
    except PymtpError as error:
        return error


def _tokens_of(llm: LLM) -> list[int] | PymtpError:
    try:
        return list(llm.generate(PROMPT, PARAMS).token_ids)
    except PymtpError as error:
        return error


class Fuzzed:
    """Small models of each kind with heads of all RECIPES. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 1, 20, 2 << 30

    def __init__(self, folder: Path) -> None:
        self.bases: list[Base] = []
        for i, (shape, kind) in enumerate(SHAPES):
            (whole,) = make_model(shape, folder / f"{i}.gguf", weight_type=kind, seed=i)
            trunk, head = write_pair(whole, folder)
            parts = (parse(path.read_bytes()) for path in (trunk, head))
            self.bases.append(Base(shape, kind, whole, trunk, head, *parts))

    def sound(self, place: Path) -> None:
        generate_tokens(self.bases[0].trunk, Path(shutil.copy(self.bases[0].head, place / "sound.gguf")))

    def make_pair(self, rng: Random, index: int, place: Path) -> tuple[Pair, list[str]]:
        """Write the two files of a pair into an empty folder; return it, and its recipe."""
        (recipe,) = rng.choices([*RECIPES], [*RECIPES.values()])
        base = index % len(self.bases)
        pair = Pair(rng, self.bases, self.bases[base], place)
        return pair, [f"{recipe.__name__}, base {base}", *map(str, recipe(pair))]

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        pair, recipe = self.make_pair(rng, index, place)
        return recipe, lambda note: generate_tokens(pair.model, pair.head)
