"""What a worker process is started with, and what it and its supervisor say to each other.

They share a pair of sockets, which carries one JSON object a line: first the Launch, then what the worker has to say.
Either sees the other's end by the end of the stream. No key is in a command line, where all users of a machine can
read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pymtp.server.settings import Settings
from pymtp.validation import whole

# The modules that the supervisor found, wherever they came from: -I leaves all other places out, the working directory
# too. Arguments: the file descriptor of the socket.
START = """\
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
given = json.loads(control.makefile().readline())
sys.path[:] = given["path"]
from pymtp.server.process.worker import work
work(control, given)
"""

READY, FAILED, BEAT = "ready", "failed", "beat"  # what a worker says
FILE, HEAD = "file", "head"  # of the model, which it says beside READY; the head's is None within the model


@dataclass(frozen=True)
class Launch:
    """
    model: a file, or a name of the hub; None for the shipped model. llm: keywords of LLM. prefix: a file that prompts
        may go on from.
    """

    settings: Settings = field(default_factory=Settings)
    model: str | None = None
    llm: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None

    def as_given(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "prefix": _text(self.prefix)}

    @classmethod
    def of_given(cls, given: Mapping[str, Any]) -> Launch:
        """From what `as_given` became on the way; more is left alone."""
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given["settings"].items()
        }
        return cls(Settings(**settings), given["model"], given["llm"], _path(given["prefix"]))


def line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def _text(path: Path | None) -> str | None:
    """Whole, whatever directory it is read in."""
    return None if path is None else whole(str(path))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
