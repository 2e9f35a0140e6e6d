"""The command `pymtp prefix`: prefill a long prompt once, and save its state for later runs that begin with it."""

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
    prompt: Annotated[str | None, typer.Argument(help='The text, or "-" to read it from standard input.')] = None,
    file: File = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to save it.")],
    system: Annotated[bool, typer.Option("--system", help="The text is a chat's system message.")] = False,
    load_options: LoadOptions,
) -> None:
    """Prefill a prompt, and save its state. With --prefix, prompts that begin with it continue from that state."""
    text = read_prompt(prompt, file)
    chat_or_text: str | Sequence[Message] = text if not system else [{"role": "system", "content": text}]
    try:
        target_path(out)  # before a model is downloaded
    except OSError as error:
        raise InvalidRequestError(f"cannot save a prefix: {error.strerror or error}") from error
    with load_options.llm() as llm, screen.status("reading the prompt …"):
        n_tokens = llm.save_prefix(chat_or_text, out)
    screen.print(f"{n_tokens:,} tokens, {out.stat().st_size / 2**20:,.1f} MiB", style="dim", soft_wrap=True)


def is_prefix(path: Path) -> bool:
    """Tell whether a file looks like a prefix file, and not like a model."""
    if not os.path.isfile(path):  # reading from a pipe would block
        return False
    try:
        with open(path, "rb") as file:
            first_bytes = file.read(9)
    except OSError:
        return False
    # a safetensors file begins with 8 bytes of length, then JSON; a GGUF has its number of tensors at that place
    return first_bytes[8:] == b"{" and not first_bytes.startswith(b"GGUF")


def about_prefix(path: Path) -> dict[str, object]:
    """Describe a prefix file. Raises InvalidRequestError for a damaged file, and for one that is no prefix."""
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
