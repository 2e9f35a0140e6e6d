"""A completion on the screen: its text as it comes, its figures after it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from rich.markup import escape

from pymtp.cli.screen import screen
from pymtp.engine.request import Completion
from pymtp.engine.stream import Stream
from pymtp.stats import Stats


def write(stream: Stream) -> Completion:
    """Prints the text as it comes."""
    with stream:
        with screen.status("reading the prompt …"):
            first = next(stream)
        for piece in chain([first], stream):
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    return stream.completion


def write_figures(completion: Completion) -> None:
    """Ends the text's line on stdout and prints the figures on stderr."""
    print()
    screen.print(figures(completion.stats), style="dim", soft_wrap=True)


def tell_unused(prefix: Path | None, completion: Completion) -> None:
    """A line on stderr where a prompt was to go on from a file of `pymtp prefix`, and begins with another text."""
    if prefix is not None and not completion.stats.cached_tokens:
        screen.print(
            f"[bold yellow]note:[/] {escape(str(prefix))} is of no use: the prompt does not begin with what it holds",
            soft_wrap=True,
        )


def figures(stats: Stats) -> str:
    """The line of figures after a completion."""
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    line = (
        f"{stats.prompt_tokens} prompt tokens{cached} at {stats.prefill_tokens_per_second:.0f}/s, "
        f"{stats.completion_tokens} tokens at {stats.decode_tokens_per_second:.1f}/s"
    )
    if stats.drafted:
        line += f", {stats.acceptance_rate:.0%} of drafts accepted, {stats.mean_accepted_length:.2f} tokens per round"
    if outside := sum(stats.outside_per_position):
        line += f", drafts lost to the draft vocabulary: {outside}"
    return line


def as_json(completion: Completion) -> str:
    """A completion and all its figures."""
    return json.dumps(asdict(completion) | {"stats": completion.stats.as_dict()}, ensure_ascii=False)
