"""Writes a projector (an `mmproj` GGUF file) with random weights for a Qwen3.5 or 3.6 model of a preset's shape.

    python tools/models/make_mmproj.py tiny build/mmproj-tiny.gguf --type f32
    python tools/models/make_mmproj.py demo build/mmproj-demo.gguf       # for the shipped model
    python tools/models/make_mmproj.py qwen3.5-0.8b build/mmproj-0.8b.gguf

See tests/makers/make_mmproj.py for the uses of these projectors; make_model.py makes the models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.make_mmproj import WEIGHTS, make_mmproj
from makers.vision_shapes import PROJECTORS


def main(
    preset: Annotated[str, typer.Argument(help=f"Model: one of {', '.join(PROJECTORS)}.")],
    path: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    weight_type: Annotated[str, typer.Option("--type", help=f"Type of the weights: {', '.join(WEIGHTS)}.")] = "f16",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
) -> None:
    """Write a projector with random weights."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        print(make_mmproj(preset.lower(), path, weight_type=weight_type.lower(), seed=seed))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror or error}") from error


if __name__ == "__main__":
    typer.run(main)
