"""The command `pymtp pull`: download a model and its head from the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.model_file import show_note
from pymtp.hub.model_download import download_model
from pymtp.hub.names import read_name


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="OWNER/NAME, OWNER/NAME:Q4_K_M, OWNER/NAME:FILE.gguf, OWNER/NAME:'*Q4_K_M*', OWNER/NAME@REVISION:…; "
            "OWNER/NAME:Q4_K_M+Q8_0 for a head of another type.",
        ),
    ],
) -> None:
    """Download a model, and its MTP head, from the Hugging Face hub.

    Prints the path of the model. If the head is in a separate file, prints the path of that file on a second line. An
    interrupted download is continued.
    """
    files = download_model(read_name(name), notify=show_note)
    print(files.model)
    if files.head is not None:
        print(files.head)
        show_note(f"{files.head.name} is the head of {files.model.name}: -m hf:{name.removeprefix('hf:')} loads both")
