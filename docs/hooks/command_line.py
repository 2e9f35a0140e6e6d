"""Write the help pages of all commands into reference/command-line.md: that of the page is that of the command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.structure.pages import Page
from typer.main import get_command

from pymtp.cli.app import app

PLACE = "<!-- the help pages of all commands -->"
COLUMNS = 110


def help_pages(command: Any, name: str, parent: Any = None) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, max_content_width=COLUMNS)
    context.terminal_width = COLUMNS
    words = context.command_path
    yield f"## `{words}`\n\n```text\n{context.get_help()}\n```\n"
    for word, subcommand in getattr(command, "commands", {}).items():
        yield from help_pages(subcommand, word, context)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Replace the comment that marks the place."""
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    assert PLACE in markdown
    return markdown.replace(PLACE, "\n".join(help_pages(get_command(app), "pymtp")))
