"""The command `pymtp pull`: download a model, its head and its projector from the Hugging Face hub."""

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
    mmproj_auto: Annotated[
        bool, typer.Option("--mmproj-auto/--no-mmproj", help="Also download the projector, for chats with images.")
    ] = True,
) -> None:
    """Download a model and its other files from the Hugging Face hub.

    The other files are the MTP head, if it is not in the model's file, and the projector, for chats with images. Prints
    the paths, each on a line: of the model, of the head, of the projector. An interrupted download is continued.
    """
    files = download_model(read_name(name), with_projector=mmproj_auto, notify=show_note)
    print(files.model)
    if files.head is not None:
        print(files.head)
        show_note(f"{files.head.name} is the head of {files.model.name}: -m hf:{name.removeprefix('hf:')} loads both")
    if files.projector is not None:
        print(files.projector)
