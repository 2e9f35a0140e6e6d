"""`pymtp prefix`: read a long prompt once, for later runs that begin with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pymtp.chat import Message
from pymtp.cli.load import Loading
from pymtp.cli.options import File, spread
from pymtp.cli.screen import screen
from pymtp.cli.texts import read_prompt
from pymtp.errors import InvalidRequestError
from pymtp.prefix_cache.file import PrefixFile
from pymtp.prefix_cache.file_writer import place_of


@spread
def prefix(
    *,
    prompt: Annotated[str | None, typer.Argument(help='The text, or "-" to read it from standard input.')] = None,
    file: File = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to save it.")],
    system: Annotated[bool, typer.Option("--system", help="The text is a chat's system message.")] = False,
    loading: Loading,
) -> None:
    """Read a prompt, and save what it leaves behind. With --prefix, prompts that begin with it go on from there."""
    text = read_prompt(prompt, file)
    asked: str | Sequence[Message] = text if not system else [{"role": "system", "content": text}]
    try:
        place_of(out)  # before a model is brought
    except OSError as error:
        raise InvalidRequestError(f"cannot save a prefix: {error.strerror or error}") from error
    with loading.llm() as llm, screen.status("reading the prompt …"):
        n = llm.save_prefix(asked, out)
    screen.print(f"{n:,} tokens, {out.stat().st_size / 2**20:,.1f} MiB", style="dim", soft_wrap=True)


def is_prefix(path: Path) -> bool:
    """Whether a file is rather one of these than a model."""
    if not os.path.isfile(path):  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError:
        return False
    # safetensors: eight bytes, then JSON; a GGUF has the number of its tensors there
    return head[8:] == b"{" and not head.startswith(b"GGUF")


def about_prefix(path: Path) -> dict[str, object]:
    """What a file holds. Raises InvalidRequestError for one that is damaged, or no prefix."""
    with PrefixFile(path, None) as file:
        about: dict[str, object] = {
            "file": str(path),
            "tokens": len(file.tokens),
            "states_after": file.places,
            "size_bytes": path.stat().st_size,
            "host_memory_bytes": file.nbytes,
        }
        said = {name: value.split() if name == "llama.cpp" else value for name, value in sorted(file.made_with.items())}
        return about | {name: value for name, value in said.items() if name not in about}
