"""Parts that several checks share: models, options of the command line, comparisons, tables, memory, JSON."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pymtp import build_info
from pymtp.bench.machine import machine
from pymtp.model.model import demo_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.gguf_variants import rewrite
from makers.make_mmproj import make_mmproj
from makers.make_model import make_model
from makers.model_shapes import PRESETS
from makers.random_weights import TYPES

ROOT = Path(__file__).resolve().parents[2]
SCREEN = Console(highlight=False, soft_wrap=True)
ModelFile = Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, the shipped model.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices; times are not reproducible.")]
Output = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]

# Rows of whole superblocks, in multiples of eight, so that every type runs its own kernels
DENSE = replace(PRESETS["7m"], n_layer=4, linear_v_heads=8, n_ff=512)
EXPERTS = replace(DENSE, n_ff=0, n_expert=8, n_expert_used=2, n_ff_expert=256, n_ff_shared=256, tied=False)
SHIPPED = ("shipped", "shipped f16", "shipped f32")
MODELS = (*SHIPPED, *(f"{kind} {shape}" for kind in TYPES for shape in ("dense", "experts")))


def run_command(main: Callable[..., None]) -> None:
    """Run the main function of a check. Its --help prints the docstring of the module."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    words = (sys.modules[main.__module__].__doc__ or "").replace("\n\n", "\n\n\b\n")  # \b keeps the lines
    app.command(help=f"\b\n{words}")(main)
    app()


def model_file(name: str, folder: Path) -> Path:
    """Return a GGUF file, or that of one of MODELS, which is made in the folder if it does not exist."""
    kind, _, which = name.partition(" ")
    path = folder / f"{name.replace(' ', '-')}.gguf"
    if name == "shipped":
        return demo_model()
    if name not in MODELS:
        return Path(name)
    if not path.exists():
        if kind == "shipped":
            rewrite(demo_model(), path, weights=which)  # type: ignore[arg-type]
        else:
            make_model(EXPERTS if which == "experts" else DENSE, path, weight_type=kind, threads=1)
    return path


def mmproj_file(name: str, folder: Path) -> Path:
    """Return a projector for one of MODELS, which is made in the folder if it does not exist."""
    preset = "demo" if name in SHIPPED else "7m"  # which is as wide as DENSE and EXPERTS
    path = folder / f"mmproj-{preset}.gguf"
    return path if path.exists() else make_mmproj(preset, path)


def differing(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the positions at which two sequences differ, with those that only one of them has."""
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))


def show_table(rows: Mapping[str, Mapping[str, Any]], first: str = "") -> None:
    """Print rows of the same columns by their names. Whole numbers get commas."""
    table = Table(first, *next(iter(rows.values())))
    for column in table.columns:
        column.no_wrap, column.justify = True, "left" if column is table.columns[0] else "right"
    for name, cells in rows.items():
        table.add_row(name, *(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells.values()))
    Console(width=max(200, SCREEN.width)).print(table)


def write_json(path: Path | None, check: str, **results: Any) -> None:
    """Write results with the machine and the build to a file, if there is one."""
    if path is not None:
        about = {"check": check, "machine": machine(), "build": build_info()}
        part = path.with_name(f"{path.name}.part")  # an end in the middle leaves the file of before
        part.write_text(json.dumps(about | results, indent=1, default=vars) + "\n")
        part.replace(path)


def resident() -> int:
    """Return the resident bytes of this process, without free memory of malloc. Needs Linux and glibc."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def limit_memory(n_bytes: int) -> None:
    """Limit the address space of this process, except with a sanitizer, which reserves terabytes of it."""
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
