"""The command `pymtp chat`: talk with a model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pymtp.chat import Message, assistant_message
from pymtp.cli import options
from pymtp.cli.completion import note_unused_prefix, print_figures, print_stream
from pymtp.cli.load import LoadOptions
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, Seed, expand_options
from pymtp.cli.screen import screen, show_error
from pymtp.cli.texts import read_input, read_text
from pymtp.errors import InvalidRequestError


@expand_options
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    system_file: Annotated[Path | None, typer.Option(help="Read the system message from this file.")] = None,
    prefix: Prefix = None,
    thinking: Annotated[
        bool | None, typer.Option(help="Think before an answer.", show_default="as the chat template does")
    ] = None,
    reasoning_budget: ReasoningBudget = -1,
    reasoning_budget_message: ReasoningBudgetMessage = "",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help="Generate at most this many tokens per turn.",
            show_default="until the model ends the turn or --ctx is full",
        ),
    ] = None,
    sampling: ModelSamplingOptions,
    seed: Seed = 0,
    load_options: LoadOptions,
) -> None:
    """Talk with a model, turn by turn. Ctrl-C ends a turn. Between turns, Ctrl-C or Ctrl-D ends the chat."""
    thinking_budget = options.thinking_params(reasoning_budget, reasoning_budget_message)
    given_params = {**sampling.given_params(max_tokens=max_tokens, seed=seed), **thinking_budget}
    if reasoning_budget == 0 and thinking is None:
        thinking = False
    if system_file is not None:
        if system is not None:
            raise InvalidRequestError("give one system message: --system or --system-file")
        system = read_text("system message", system_file)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    template_kwargs = {} if thinking is None else {"enable_thinking": thinking}
    with load_options.llm(prefix=prefix) as llm:
        params = replace(llm.get_default_sampling_params(), **given_params)
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            conversation = [*messages, {"role": "user", "content": line}]
            try:
                stream = llm.stream_chat(conversation, params, chat_template_kwargs=template_kwargs)
            except InvalidRequestError as error:  # this turn cannot be answered, but the next one may be
                show_error(error)
                continue
            try:
                completion = print_stream(stream)
            except KeyboardInterrupt:
                completion = stream.completion
            print_figures(completion)
            note_unused_prefix(prefix, completion)
            prefix = None  # so that the note is printed once: later prompts continue from this turn, not from the file
            prompt = llm.chat_template.render(conversation, chat_template_kwargs=template_kwargs)
            messages = [*conversation, assistant_message(completion.text, prompt)]


def _read_line() -> str | None:
    """Read a line from the user. Return None at the end of input."""
    if sys.stdin is not None and sys.stdin.isatty():
        screen.print("> ", end="", style="bold")
    line = read_input(line=True)
    return line.rstrip("\n") if line else None
