"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelFile = Annotated[Path | None, typer.Option("--model", "-m", help="GGUF file; if not given, pymtp's own.")]
Layers = Annotated[int, typer.Option("--gpu-layers", "-g", help="Layers on the GPU, -1 for all.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", help="CPU threads.", show_default="physical cores")]
CacheType = Annotated[str, typer.Option("--cache-type", help="Type of the K and V cache: f16, q8_0, q4_0 …")]
