"""The file that -m names: a path, or a model on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from pymtp.cli.screen import screen
from pymtp.hub.names import is_hub_name, read_name
from pymtp.hub.pull import pull


def model_file(name: str | None) -> Path | None:
    """The file of a model; None for the shipped one. "hf:…" is brought from the hub: see `pull_model`."""
    if name is None:
        return None
    return pull_model(name) if is_hub_name(name) else Path(name)


def pull_model(name: str) -> Path:
    """A model of the hub, with a line on stderr for what a user should know. Raises as `hub.pull.pull`."""
    return pull(read_name(name), say=_tell)


def _tell(note: str) -> None:
    screen.print(f"[bold yellow]note:[/] {escape(note)}", soft_wrap=True)
