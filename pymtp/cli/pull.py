"""`pymtp pull`: a model from the Hugging Face hub, and its head."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.model_file import tell
from pymtp.hub.names import read_name
from pymtp.hub.pull import pull as pull_files


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="OWNER/NAME, OWNER/NAME:Q4_K_M, OWNER/NAME:FILE.gguf, OWNER/NAME:'*Q4_K_M*', OWNER/NAME@REVISION:…; "
            "OWNER/NAME:Q4_K_M+Q8_0 for another head.",
        ),
    ],
) -> None:
    """Download a model, and its MTP head, from the Hugging Face hub.

    Prints the model's path, and that of a head in a file of its own on a second line. Goes on where an earlier run was
    interrupted.
    """
    found = pull_files(read_name(name), say=tell)
    print(found.model)
    if found.head is not None:
        print(found.head)
        tell(f"{found.head.name} is the head of {found.model.name}: -m hf:{name.removeprefix('hf:')} takes both")
