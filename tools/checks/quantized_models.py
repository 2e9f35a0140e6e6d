"""Quantizes small models with llama.cpp's own quantizer, and compares bits and texts of what comes out.

    python tools/checks/quantized_models.py
    python tools/checks/quantized_models.py --types IQ2_XXS,iq2_xxs:pure,ud-iq2_xxs --models dense --tokens 20000

Types are the mixes of llama-quantize, "NAME:pure" for all matrices of one type, and the published mixes of
tests/makers/weight_mixes.py. Models: random weights, dense and with experts, and the shipped one, whose rows are no
multiples of 256. Importance matrices are random: only types and bits are checked.

A row of the table counts what differs:
unexpected  Types of tensors that are not those of weight_mixes.py, if it has the mix.
rows        Verifications of 2 to 65 rows, whose bits are not those of single steps.
cuts        Prompts read in pieces, whose bits are not those of the prompt in one piece.
differ      Tokens of texts with drafts that are not those without, greedy and sampled (same_text.py).

llama-quantize is built from the pinned sources below build/. Exits with status 1 if anything differs.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import same_text
import typer
from common import DENSE, EXPERTS, SCREEN, Output, run_command, show_table, write_json
from gguf import GGUFWriter
from llama_build import build
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import Shape
from makers.new_texts import new_prompts
from makers.random_weights import TYPES
from makers.weight_blocks import BLOCKS
from makers.weight_mixes import LLAMA, PUBLISHED, tensor_types

from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model

SHAPES = {"dense": DENSE, "experts": replace(EXPERTS, n_expert=4)}  # 8 experts have rules of their own
MODELS = (*SHAPES, "shipped")
PURE = ":pure"
NO_TYPES = ("COPY", "F32", "F16", "BF16")  # nothing is quantized
SIZES = (*range(2, 17), 31, 32, 33, 64, 65)  # rows of a verification
N = 600  # tokens of a prompt that is cut: more than the 512 of a launch
CUTS = ([300], [1, 2], [37, 39, 511], [255, 256, 513], [4, 599])


@dataclass(frozen=True)
class Job:
    """A model that is quantized and measured. file: its weights in F32."""

    program: Path
    file: Path
    model: str
    kind: str
    depths: tuple[int, ...]
    prompts: tuple[str, ...]
    length: int


def read_types(usage: str) -> list[str]:
    """Return the types that llama-quantize lists in its usage, without other names of the same."""
    _, _, types = usage.partition("allowed quantization types")
    found = re.findall(r"^ +[0-9]+ +or +([A-Z0-9_]+) *: *(.*)$", types, re.MULTILINE)
    return [name for name, about in found if name not in NO_TYPES and not about.startswith("alias")]


def all_kinds(types: Sequence[str]) -> list[str]:
    """Return the mixes of llama-quantize, each type alone, and the mixes of others."""
    return [*types, *(f"{name}{PURE}" for name, kind in TYPES.items() if kind in BLOCKS), *PUBLISHED]


def own_mix(kind: str) -> str | None:
    """Return the name of a mix of llama-quantize in weight_mixes.py, or None."""
    return next((name for name in (kind.lower().replace("_moe", "-moe"), f"mix-{kind.lower()}") if name in LLAMA), None)


def quantizer_options(kind: str, shape: Shape | None, folder: Path) -> list[str] | None:
    """Return the options of llama-quantize for a type, which comes last; None if the type needs a shape.

    folder: gets a list of types for the mixes that llama-quantize does not have.
    """
    if kind.endswith(PURE):
        return ["--tensor-type", f".*={kind.removesuffix(PURE)}", "Q8_0"]
    if kind not in PUBLISHED:
        return [kind]
    if shape is None:
        return None
    matrices = [(tensor.name, found.name.lower()) for tensor, found in tensor_types(shape, kind) if len(tensor.ne) > 1]
    (folder / "types.txt").write_text("\n".join(f"^{re.escape(name)}$={found}" for name, found in matrices))
    return ["--tensor-type-file", str(folder / "types.txt"), "Q8_0"]


def write_imatrix(model: Path, path: Path) -> None:
    """Write a random importance matrix for all matrices of a model."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for tensor in open_gguf(model).tensors:
        if len(tensor.shape) > 1:
            experts = int(tensor.shape[2]) if len(tensor.shape) > 2 else 1
            sums = rng.lognormal(size=(experts, int(tensor.shape[0]))).astype(np.float32)
            writer.add_tensor(f"{tensor.name}.in_sum2", sums)
            writer.add_tensor(f"{tensor.name}.counts", np.ones((experts, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def row_differences(model: Model, sizes: Sequence[int] = SIZES) -> int:
    """Count the sizes of verifications whose bits are not those of single steps."""
    tokens = random.Random(0).choices(range(256), k=2 + max(sizes))
    with Context(model, n_ctx=128, draft_tokens=max(sizes) - 1, n_threads=1) as context:

        def rows(numbers: Sequence[int]) -> Any:
            context.clear()
            context.prefill(tokens[:2])
            return np.concatenate([context.verify(tokens[context.n_past : context.n_past + n]) for n in numbers])

        alone = rows([1] * max(sizes))
        return sum(rows([n]).tobytes() != alone[:n].tobytes() for n in sizes)


def cut_differences(model: Model, n: int = N, cuts: Sequence[Sequence[int]] = CUTS) -> int:
    """Count the ways to cut a prompt of n tokens that change the bits of its logits, or those of the next rows."""
    tokens = random.Random(1).choices(range(256), k=n)
    with Context(model, n_ctx=n + 64, draft_tokens=7, n_threads=1) as context:

        def bits(ends: Sequence[int]) -> bytes:
            context.clear()
            for begin, end in zip([0, *ends], [*ends, n], strict=True):
                logits = context.prefill(tokens[begin:end])
            return bytes(logits.tobytes() + context.verify([3, 1, 4, 1, 5]).tobytes())

        whole = bits([])
        return sum(bits(ends) != whole for ends in cuts)


def measure(job: Job) -> tuple[str, dict[str, Any] | str]:
    """Quantize and measure a model. Return its name, and a row of the table, or the reason why there is none."""
    name, shape = f"{job.model} {job.kind}", SHAPES.get(job.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = quantizer_options(job.kind, shape, folder)
        if options is None:
            return name, "the mix is made for random models only"
        write_imatrix(job.file, folder / "imatrix.gguf")
        file = folder / "model.gguf"
        command = [job.program, "--imatrix", folder / "imatrix.gguf", *options[:-1], job.file, file, options[-1], "1"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            return name, f"llama-quantize: {(done.stdout.strip().splitlines() or ['no output'])[-1]}"
        types = {tensor.name: tensor.tensor_type for tensor in open_gguf(file).tensors}
        mix = None if shape is None else own_mix(job.kind)
        row: dict[str, Any] = {"types": ", ".join(sorted({kind.name for kind in types.values()} - {"F32"}))}
        row["unexpected"] = sum(types[t.name] != kind for t, kind in tensor_types(shape, mix)) if shape and mix else 0
        with Model(file) as model:
            row |= {"rows": row_differences(model), "cuts": cut_differences(model)}
        arms = {
            f"{n} drafts": same_text.write((file, {"draft_tokens": n}, job.prompts, job.length))
            for n in (0, *job.depths)
        }
        counts = Counter[str]()
        for arm in same_text.compare(name, arms).values():
            counts.update(arm)
    return name, row | {column: counts[column] for column in ("tokens", "differ", "drafts", "accepted")}


def make_sources(models: Sequence[str], folder: Path) -> dict[str, Path]:
    """Write the models that are quantized, in F32."""
    files = {model: folder / f"{model}.gguf" for model in models}
    for model, file in files.items():
        if model in SHAPES:
            make_model(SHAPES[model], file, weight_type="f32")
        else:
            rewrite(demo_model(), file, weights="f32")
    return files


def chosen(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Parse a list of names. Raises typer.BadParameter for a name that is not known."""
    names = list(known) if text is None else [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{option} {', '.join(unknown)} not known: use {', '.join(known)}")
    return names


def main(
    types: Annotated[str | None, typer.Option(help="Types, separated by commas; all if not given.")] = None,
    models: Annotated[str | None, typer.Option(help=f"Some of {', '.join(MODELS)}; all if not given.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Of each type, model, depth and way.")] = 400,
    length: Annotated[int, typer.Option(min=2, max=700, help="Tokens of a text.")] = 200,
    depths: Annotated[str, typer.Option(help="Numbers of drafts to compare with none.")] = "3,7",
    processes: Annotated[int, typer.Option(min=1, help="Processes at a time, one thread each.")] = 2,
    output: Output = None,
) -> None:
    """Quantize, compare, and exit with status 1 if anything differs."""
    names = chosen("--models", models, MODELS)
    program = build("llama-quantize", ("common/", "tools/quantize/"), patched=False)
    usage = subprocess.run([program, "--help"], stdout=subprocess.PIPE, text=True).stdout
    kinds = chosen("--types", types, all_kinds(read_types(usage)))
    prompts = tuple(new_prompts(-(-tokens // length)))
    with tempfile.TemporaryDirectory() as folder:
        files = make_sources(names, Path(folder))
        numbers = tuple(int(depth) for depth in depths.split(","))
        jobs = [Job(program, files[model], model, kind, numbers, prompts, length) for kind in kinds for model in names]
        results: dict[str, dict[str, Any] | str] = {}
        for name, result in same_text.in_processes(measure, jobs, processes):
            results[name] = result  # written after each: all types take hours
            is_whole = len(results) == len(jobs)
            about = {"tokens": tokens, "length": length, "depths": numbers, "complete": is_whole}
            write_json(output, "quantized models", **about, rows=results)
    rows = {name: row for name, row in results.items() if not isinstance(row, str)}
    for name, reason in results.items():
        if isinstance(reason, str):
            SCREEN.print(f"{name}: skipped, {reason}")
    if rows:
        show_table(rows, "model and type")
    wrong = [name for name, row in rows.items() if any(row[key] for key in ("unexpected", "rows", "cuts", "differ"))]
    SCREEN.print(f"{len(wrong)} of {len(rows)} quantized models differ somewhere")
    raise typer.Exit(1 if wrong or not rows else 0)


if __name__ == "__main__":
    run_command(main)
