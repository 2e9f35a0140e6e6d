"""The command `pymtp prefix`: prefill a long text once, and save its state for later prompts that begin with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pymtp.chat import Message
from pymtp.cli.load import LoadOptions
from pymtp.cli.options import File, expand_options
from pymtp.cli.screen import screen
from pymtp.cli.texts import read_prompt
from pymtp.errors import InvalidRequestError
from pymtp.prefix_cache.file import PrefixFile
from pymtp.prefix_cache.file_writer import target_path


@expand_options
def prefix(
    *,
    prompt: Annotated[str | None, typer.Argument(help='The text, or "-" for standard input.')] = None,
    file: File = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The prefix file to write.")],
    system: Annotated[bool, typer.Option("--system", help="Save the text as the system message of a chat.")] = False,
    load_options: LoadOptions,
) -> None:
    """Prefill a text, and save its state. With --prefix, prompts that begin with the text continue from that state."""
    text = read_prompt(prompt, file)
    chat_or_text: str | Sequence[Message] = text if not system else [{"role": "system", "content": text}]
    try:
        target_path(out)  # already here, so that an unusable path is found before a download
    except OSError as error:
        raise InvalidRequestError(f"cannot save a prefix: {error.strerror or error}") from error
    with load_options.llm() as llm, screen.status("reading the prompt …"):
        n_tokens = llm.save_prefix(chat_or_text, out)
    screen.print(f"{n_tokens:,} tokens, {out.stat().st_size / 2**20:,.1f} MiB", style="dim", soft_wrap=True)


def is_prefix(path: Path) -> bool:
    """Return whether a file looks like a prefix file, and not like a model."""
    if not os.path.isfile(path):  # such as a pipe, from which reading could block
        return False
    try:
        with open(path, "rb") as file:
            first_bytes = file.read(9)
    except OSError:
        return False
    # A prefix file is a safetensors file: after 8 bytes of a length, JSON begins with "{". In a GGUF file, that byte
    # belongs to the number of tensors, and so may have the same value.
    return first_bytes[8:] == b"{" and not first_bytes.startswith(b"GGUF")


def about_prefix(path: Path) -> dict[str, object]:
    """Return facts about a prefix file. Raises InvalidRequestError if it is damaged, or is not a prefix file."""
    with PrefixFile(path, None) as file:
        about: dict[str, object] = {
            "file": str(path),
            "tokens": len(file.tokens),
            "states_after": file.checkpoints,
            "size_bytes": path.stat().st_size,
            "host_memory_bytes": file.nbytes,
        }
        made_with = {
            name: value.split() if name == "llama.cpp" else value for name, value in sorted(file.made_with.items())
        }
        return about | {name: value for name, value in made_with.items() if name not in about}
