"""The command `pymtp generate`: continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pymtp.chat import Chat
from pymtp.cli.completion import as_json, note_unused_prefix, print_figures, print_stream
from pymtp.cli.load import LoadOptions
from pymtp.cli.options import (
    AsJson,
    File,
    MaxTokens,
    Prefix,
    SamplingOptions,
    Temperature,
    expand_options,
)
from pymtp.cli.sampler_options import SamplerOptions
from pymtp.cli.texts import read_prompt, read_text
from pymtp.errors import InvalidRequestError
from pymtp.sampling import SamplingParams


def chat_with_images(text: str, images: Sequence[Path]) -> Chat:
    """Return a chat of one message, with the images before the text."""
    if any(str(path).lower().startswith(("http:/", "https:/")) for path in images):
        raise InvalidRequestError("--image takes files: URLs are not fetched")
    parts = [*({"type": "image", "image": path} for path in images), {"type": "text", "text": text}]
    return Chat([{"role": "user", "content": parts}])


@expand_options
def generate(
    *,
    prompt: Annotated[str | None, typer.Argument(help='The prompt, or "-" for standard input.')] = None,
    file: File = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image",
            metavar="FILE",
            help="Show the model this image: the prompt is then the message of a chat. May be repeated.",
        ),
    ] = None,
    prefix: Prefix = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    sampling: SamplingOptions,
    samplers: SamplerOptions,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", "--reverse-prompt", "-r", help="Stop before this string. May be repeated."),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue after the model's end token.")] = False,
    grammar_file: Annotated[
        Path | None, typer.Option(help="Constrain the text to the GBNF grammar in this file.")
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option("--json-schema", "--json-schema-file", "-jf", help="Constrain the text to this JSON schema."),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log-probabilities of each token and of this many of the likeliest tokens."),
    ] = None,
    load_options: LoadOptions,
    json_output: AsJson = False,
) -> None:
    """Continue a prompt."""
    text = read_prompt(prompt, file)
    params = SamplingParams(
        max_tokens,
        temperature,
        **asdict(sampling),
        **samplers.given_values(),
        stop=stop or (),
        ignore_eos=ignore_eos,
        grammar=read_text("grammar", grammar_file) if grammar_file else None,
        json_schema=read_text("JSON schema", json_schema) if json_schema else None,
        logprobs=logprobs,
    )
    with load_options.llm(prefix=prefix) as llm:
        shown = chat_with_images(text, images) if images else text
        if json_output:
            completion = llm.generate(shown, params)
            print(as_json(completion))
        else:
            completion = print_stream(llm.stream(shown, params))
            print_figures(completion)
        note_unused_prefix(prefix, completion)
