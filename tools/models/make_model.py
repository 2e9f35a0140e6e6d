"""Writes a GGUF file with random weights in the shape of a Qwen3.5, 3.6 or Qwen3-Next model, with its MTP head.

    python tools/models/make_model.py tiny build/tiny.gguf
    python tools/models/make_model.py qwen3.6-35b-a3b build/35b-a3b.gguf --type iq4_nl
    python tools/models/make_model.py qwen3.6-27b build/27b.gguf --no-weights && pymtp info --memory build/27b.gguf
    python tools/models/make_model.py qwen3.6-27b build/27b-4.gguf --type q4_k --layers 4 --vocab 8192
    python tools/models/make_model.py qwen3.6-27b build/27b-iq2.gguf --type ud-iq2_xxs --layers 8

See tests/makers/make_model.py for the uses of these models, and tests/makers/weight_mixes.py for the mixes of types.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.make_model import WEIGHTS, make_model
from makers.model_shapes import ATTENTION_INTERVAL, PRESETS
from makers.weight_mixes import absent_types


def main(
    preset: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")],
    path: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    weight_type: Annotated[
        str, typer.Option("--type", help=f"Type, or mix, of the weights: {', '.join(WEIGHTS)}.")
    ] = "q8_0",
    layers: Annotated[int | None, typer.Option(min=4, help="Layers: 4, 8, 12 …")] = None,
    vocab: Annotated[int | None, typer.Option(min=512, help="Tokens instead of the preset's.")] = None,
    experts: Annotated[int | None, typer.Option(min=8, help="Experts per layer.")] = None,
    head: Annotated[bool, typer.Option("--head/--no-head", help="With the multi-token-prediction head.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    split_max_tensors: Annotated[int, typer.Option(min=0, help="The most tensors a file, 0 for a single file.")] = 0,
    weights: Annotated[bool, typer.Option("--weights/--no-weights", help="Or a hole for `pymtp info`.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that make weights.", show_default="cores")] = None,
) -> None:
    """Write a GGUF with random weights."""
    preset, weight_type = preset.lower(), weight_type.lower()
    if preset not in PRESETS:
        raise typer.BadParameter(f"no preset is called {preset!r}, there are {', '.join(PRESETS)}")
    if experts and not PRESETS[preset].n_expert:
        raise typer.BadParameter(f"{preset} has no experts")
    if layers and layers % ATTENTION_INTERVAL:
        raise typer.BadParameter(f"each {ATTENTION_INTERVAL}th layer is one of full attention, so no {layers} layers")
    other = {"n_layer": layers, "n_vocab": vocab, "n_expert": experts}
    changed = {name: value for name, value in other.items() if value}
    shape = replace(PRESETS[preset], **changed) if changed else preset
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(path.name)
            paths = make_model(
                shape,
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
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror or error}") from error
    if absent := absent_types(replace(PRESETS[preset], **changed, head=head), weight_type):
        print(f"note: no tensor has the type {absent}: the model has none that this type is for", file=sys.stderr)
    for file in paths:
        print(file)


if __name__ == "__main__":
    typer.run(main)
