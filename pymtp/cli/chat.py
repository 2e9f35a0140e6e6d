"""`pymtp chat`: talk with a model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pymtp.chat import Message, answer_message
from pymtp.cli import options
from pymtp.cli.completion import tell_unused, write, write_figures
from pymtp.cli.load import Loading
from pymtp.cli.model_sampling import ModelSampling
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, Seed, spread
from pymtp.cli.screen import read_input, screen, show_error
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError


@spread
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    system_file: Annotated[Path | None, typer.Option(help="Read the system message from this file.")] = None,
    prefix: Prefix = None,
    thinking: Annotated[bool | None, typer.Option(help="Think before an answer.", show_default="the model's")] = None,
    reasoning_budget: ReasoningBudget = -1,
    reasoning_budget_message: ReasoningBudgetMessage = "",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help="Generate at most this many tokens a turn.",
            show_default="to the end of the model or of --ctx",
        ),
    ] = None,
    sampling: ModelSampling,
    seed: Seed = 0,
    loading: Loading,
) -> None:
    """Talk with a model, turn by turn. Ctrl-C ends a turn, Ctrl-D ends the chat."""
    budget = options.thinking(reasoning_budget, reasoning_budget_message)
    values = {**sampling.given(max_tokens=max_tokens, seed=seed), **budget}
    if reasoning_budget == 0 and thinking is None:
        thinking = False
    if system_file is not None:
        if system is not None:
            raise InvalidRequestError("give one system message: --system or --system-file")
        system = read_text("system message", system_file)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    given = {} if thinking is None else {"enable_thinking": thinking}
    with loading.llm(prefix=prefix) as llm:
        params = replace(llm.get_default_sampling_params(), **values)
        while (said := _ask()) is not None:
            if not said.strip():
                continue
            asked = [*messages, {"role": "user", "content": said}]
            try:
                stream = llm.stream_chat(asked, params, chat_template_kwargs=given)
            except InvalidRequestError as error:  # this turn cannot be answered, the next may be
                show_error(error)
                continue
            try:
                completion = write(stream)
            except KeyboardInterrupt:
                completion = stream.completion
            write_figures(completion)
            tell_unused(prefix, completion)
            prefix = None  # later turns go on from this one
            prompt = llm.chat_template.render(asked, chat_template_kwargs=given)
            messages = [*asked, answer_message(completion.text, prompt)]


def _ask() -> str | None:
    """A line from the user; None at the end of input."""
    if sys.stdin is not None and sys.stdin.isatty():
        screen.print("> ", end="", style="bold")
    line = read_input(line=True)
    return line.rstrip("\n") if line else None
