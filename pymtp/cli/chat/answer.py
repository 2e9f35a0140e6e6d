"""Printing of an answer while it is generated."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.style import Style

from pymtp.chat import ContentDelta, OutputEvent, OutputFormat, ReasoningDelta
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.qwen_tags import THINK_START
from pymtp.cli.screen import write_text

_DIM = Style(dim=True)


class AnswerPrinter:
    """Prints the pieces of an answer to stdout.

    On a terminal that can dim text, the thinking is dimmed. Elsewhere the text is as the model wrote it, with the tags
    of its thinking; the opening tag is added where the prompt has it.
    """

    def __init__(self, template: str | None, prompt: ChatPrompt) -> None:
        """template: the source of the chat template. prompt: the prompt of the answer."""
        console = Console(file=sys.stdout)
        self._dims = console.color_system is not None and not console.legacy_windows
        self._parser = OutputFormat(template, prompt.end).parser()
        self._tag = f"{THINK_START}\n" if prompt.end.rstrip().endswith(THINK_START) else ""
        self._in_thinking = False

    def print(self, text: str) -> None:
        """Print a piece of the answer."""
        if self._dims:
            self._print_events(self._parser.push(text))
        else:
            write_text(self._tag + text)
            self._tag = ""

    def finish(self) -> None:
        """Print what the end of the answer shows to be text."""
        if self._dims:
            self._print_events(self._parser.finish())

    def _print_events(self, events: list[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._in_thinking = True
                write_text(event.text, _DIM)
            elif isinstance(event, ContentDelta):
                write_text("\n\n" + event.text if self._in_thinking else event.text)
                self._in_thinking = False
