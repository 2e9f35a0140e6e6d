"""Output of a completion: the text while it is generated, and the figures when it has ended."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from pymtp.cli.model_file import show_note
from pymtp.cli.screen import screen, write_text
from pymtp.engine.request import Completion
from pymtp.engine.stream import Stream
from pymtp.stats import Stats


def print_stream(stream: Stream) -> Completion:
    """Print the text of a stream while it is generated. Return the completion."""
    with stream:
        with screen.status("reading the prompt …"):
            first = next(stream)
        for piece in chain([first], stream):
            write_text(piece.text)
    return stream.completion


def print_figures(completion: Completion) -> None:
    """Print a newline after the text on stdout, and the figures of the completion on stderr."""
    print()
    screen.print(format_figures(completion.stats), style="dim", soft_wrap=True)


def note_unused_prefix(prefix: Path | None, completion: Completion) -> None:
    """Print a note on stderr if a prefix file was given, but the prompt does not begin with its text."""
    if prefix is not None and not completion.stats.cached_tokens:
        show_note(f"{prefix} is not used: the prompt does not begin with its text")


def format_figures(stats: Stats) -> str:
    """Format the figures of a completion as one line."""
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    line = (
        f"{stats.prompt_tokens} prompt tokens{cached} at {stats.prefill_tokens_per_second:.0f}/s, "
        f"{stats.completion_tokens} tokens at {stats.decode_tokens_per_second:.1f}/s"
    )
    if stats.drafted:
        line += f", {stats.accepted} of {stats.drafted} drafts accepted"
        if stats.drafted_by_text:
            line += f" ({stats.accepted_by_text} of {stats.drafted_by_text} from text)"
        line += f", {stats.mean_accepted_length:.2f} tokens per round"
    if n_outside := sum(stats.outside_per_position):
        line += f", drafts lost because the draft vocabulary lacks the token: {n_outside}"
    return line


def as_json(completion: Completion) -> str:
    """Format a completion and all its figures as JSON."""
    return json.dumps(asdict(completion) | {"stats": completion.stats.as_dict()}, ensure_ascii=False)
