"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# what runs, and where
ModelFile = Annotated[Path | None, typer.Option("--model", "-m", help="GGUF file. Default: the shipped model.")]
ModelArgument = Annotated[Path | None, typer.Argument(help="GGUF file. Default: the shipped model.")]
Layers = Annotated[int, typer.Option("--gpu-layers", "-g", help="Layers on the GPU, -1 for all.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", help="CPU threads.", show_default="physical cores")]
CacheType = Annotated[str, typer.Option("--cache-type", help="Type of the K and V cache: f16, q8_0, q4_0 …")]
Ctx = Annotated[int, typer.Option("--ctx", "-c", help="Context length in tokens, 0 for the model's own.")]
SeqMax = Annotated[int, typer.Option("--n-seq-max", "-s", help="Texts written at once, with --ctx tokens each.")]

# drafts
Drafts = Annotated[str, typer.Option("--draft-tokens", "-d", metavar="auto|N", help="Drafts per round.")]
DraftVocab = Annotated[
    str, typer.Option("--draft-vocab", metavar="auto|all|N", help="Tokens that drafts are chosen from.")
]
Tap = Annotated[str, typer.Option(help="Hidden state that the MTP head takes: post_norm, pre_norm, auto.")]

# sampling
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Generate at most this many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens, 0 for all.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens whose probabilities add up to p.")]
MinP = Annotated[float, typer.Option(help="Drop tokens with less than this share of the largest probability.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling.")]

# output
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
