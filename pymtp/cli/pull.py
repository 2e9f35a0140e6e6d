"""`pymtp pull`: a model from the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.model_file import pull_model


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="OWNER/NAME, OWNER/NAME:Q4_K_M, OWNER/NAME:FILE.gguf, OWNER/NAME:'*Q4_K_M*', OWNER/NAME@REVISION:….",
        ),
    ],
) -> None:
    """Download a model from the Hugging Face hub, and print its path. Goes on where an earlier run was interrupted."""
    print(pull_model(name))
