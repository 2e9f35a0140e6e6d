"""The command `pymtp chat`: talk with a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pymtp.cli import options
from pymtp.cli.chat.ended import restored_terminal
from pymtp.cli.chat.interrupts import Interrupts
from pymtp.cli.chat.reader import Reader, is_interactive, make_reader
from pymtp.cli.chat.session import ChatSession
from pymtp.cli.chat.settings import ChatSettings
from pymtp.cli.chat.slash_commands import SlashCommands
from pymtp.cli.chat.slash_words import split_command
from pymtp.cli.load import LoadOptions
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, expand_options, none_for_minus_one
from pymtp.cli.screen import printable, screen, show_remark
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM


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
            **options.COUNT,
            help="Generate at most this many tokens per turn.",
            show_default="until the model ends the turn or --ctx is full",
            callback=none_for_minus_one,
        ),
    ] = None,
    sampling: ModelSamplingOptions,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="random")] = None,
    load_options: LoadOptions,
) -> None:
    """Talk with a model, turn by turn. /help lists the commands of the chat."""
    given_params = sampling.given_params(max_tokens=max_tokens, seed=-1 if seed is None else seed)
    given_params |= options.thinking_params(reasoning_budget, reasoning_budget_message)
    if system_file is not None:
        if system is not None:
            raise InvalidRequestError("give one system message: --system or --system-file")
        system = read_text("system message", system_file)
    with load_options.llm(prefix=prefix) as llm, restored_terminal(), Interrupts(llm.cancel) as interrupts:
        settings = ChatSettings(replace(llm.get_default_sampling_params(), **given_params), thinking)
        reader = make_reader(interrupts)
        session = ChatSession(llm, settings, interrupts, reader, prefix)
        if system:
            session.set_system(system)
        if is_interactive():
            _print_banner(llm, load_options)
        _run(session, reader, interrupts)


def _run(session: ChatSession, reader: Reader, interrupts: Interrupts) -> None:
    """Read and answer until the user leaves. Raises KeyboardInterrupt at the second Ctrl-C in a row."""
    commands = SlashCommands(session, reader)
    while True:
        try:
            line = reader.read()
            command = split_command(line)
            if command is not None:
                commands.run(*command)
            elif line.strip():
                session.ask(line)
        except EOFError:
            return
        except KeyboardInterrupt:
            if interrupts.in_a_row > 1:
                raise
            show_remark("Ctrl-C again leaves, and so does Ctrl-D")


def _print_banner(llm: LLM, load_options: LoadOptions) -> None:
    """Print which model is loaded, and how to use the chat."""
    name = "the shipped model" if load_options.model is None else llm.model.path.name
    head = llm.model.head
    by_head = f"by {'its own MTP head' if head is None else Path(head).name}" if llm.context.draft_tokens else ""
    sources = " and ".join(filter(None, [by_head, "from text" if llm.context.draft_text else ""]))
    drafts = f"drafts ({load_options.draft_tokens}) {sources}" if sources else "no drafts"
    screen.print(printable(f"{name}: context of {llm.context.n_ctx} tokens, {drafts}"), markup=False)
    screen.print("/help lists commands and keys. Ctrl-C ends a turn. Ctrl-D leaves.", style="dim")
