"""Writes a GGUF file with random weights in the shape of a Qwen3.5 or 3.6 model, with its MTP head.

    python tools/models/make_model.py tiny build/tiny.gguf
    python tools/models/make_model.py qwen3.6-35b-a3b build/35b-a3b.gguf --type iq4_nl
    python tools/models/make_model.py qwen3.6-27b build/27b.gguf --no-weights && pymtp info --memory build/27b.gguf

tests/makers/make_model.py says what these models are good for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.make_model import make_model
from makers.model_shapes import PRESETS
from makers.random_weights import TYPES


def main(
    preset: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")],
    path: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    weight_type: Annotated[str, typer.Option("--type", help=f"Type of the weights: {', '.join(TYPES)}.")] = "q8_0",
    head: Annotated[bool, typer.Option("--head/--no-head", help="With the multi-token-prediction head.")] = True,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
    split_max_tensors: Annotated[int, typer.Option(help="The most tensors a file, 0 for a single file.")] = 0,
    weights: Annotated[bool, typer.Option("--weights/--no-weights", help="Or a hole, for `pymtp info`.")] = True,
    threads: Annotated[int | None, typer.Option(help="Threads that make weights.", show_default="cores")] = None,
) -> None:
    """Write a GGUF with random weights."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(path.name)
            paths = make_model(
                preset,
                path,
                weight_type=weight_type,
                head=head,
                seed=seed,
                split_max_tensors=split_max_tensors,
                weights=weights,
                threads=threads,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for file in paths:
        print(file)


if __name__ == "__main__":
    typer.run(main)
