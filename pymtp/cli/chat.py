"""`pymtp chat`: talk with a model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pymtp.chat import Message
from pymtp.cli.completion import write, write_figures
from pymtp.cli.load import load
from pymtp.cli.options import (
    CacheType,
    Ctx,
    Drafts,
    DraftVocab,
    Layers,
    MaxTokens,
    MinP,
    ModelFile,
    Seed,
    Tap,
    Temperature,
    Threads,
    TopK,
    TopP,
)
from pymtp.cli.screen import read_input, screen, show_error
from pymtp.errors import InvalidRequestError
from pymtp.sampling import SamplingParams


def chat(
    model: ModelFile = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.7,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = 0,
    draft_tokens: Drafts = "auto",
    draft_vocab: DraftVocab = "auto",
    tap: Tap = "auto",
    ctx: Ctx = 8192,
    gpu_layers: Layers = -1,
    threads: Threads = None,
    cache_type: CacheType = "f16",
) -> None:
    """Talk with a model, turn by turn. Ctrl-C ends a turn, Ctrl-D ends the chat."""
    params = SamplingParams(max_tokens, temperature, top_k, top_p, min_p, seed)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    with load(model, ctx, gpu_layers, threads, cache_type, draft_tokens, draft_vocab, tap) as llm:
        while (said := _ask()) is not None:
            if not said.strip():
                continue
            asked = [*messages, {"role": "user", "content": said}]
            try:
                stream = llm.stream_chat(asked, params)
            except InvalidRequestError as error:  # this turn cannot be answered, the next may be
                show_error(error)
                continue
            try:
                completion = write(stream)
            except KeyboardInterrupt:
                completion = stream.completion
            write_figures(completion)
            messages = [*asked, {"role": "assistant", "content": completion.text}]


def _ask() -> str | None:
    """A line from the user; None at the end of input."""
    if sys.stdin is not None and sys.stdin.isatty():
        screen.print("> ", end="", style="bold")
    line = read_input(line=True)
    return line.rstrip("\n") if line else None
