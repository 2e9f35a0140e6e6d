"""The configuration of a worker process, and its messages to the supervisor.

Both share a socket pair with one JSON object per line: first the WorkerConfig, then the messages of the worker. Each
sees by the end of the stream that the other has ended. API keys are not in the command line, which all users of the
machine can read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pymtp.server.settings import ServerSettings
from pymtp.validation import absolute_path

# The worker runs with -I, which ignores the environment and the working directory, and takes the supervisor's sys.path.
# Its argument is the file descriptor of the socket.
WORKER_PROGRAM = """\
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
config = json.loads(control.makefile().readline())
sys.path[:] = config["path"]
from pymtp.server.process.worker import run_worker
run_worker(control, config)
"""

READY, FAILED, HEARTBEAT = "ready", "failed", "beat"  # keys of a worker's messages
FILE, HEAD = "file", "head"  # paths beside READY; the head is None where the model's file has it


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker process.

    model: a file, or a name of the hub; None for the shipped model. llm: keyword arguments of LLM.
    prefix: the file of a saved prefix.
    """

    settings: ServerSettings = field(default_factory=ServerSettings)
    model: str | None = None
    llm: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return an object for JSON."""
        return {**asdict(self), "prefix": _text(self.prefix)}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> WorkerConfig:
        """Read the object of `to_json` after JSON; further keys are ignored."""
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in message["settings"].items()
        }
        return cls(ServerSettings(**settings), message["model"], message["llm"], _path(message["prefix"]))


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line."""
    return json.dumps(message).encode() + b"\n"


def _text(path: Path | None) -> str | None:
    """Return an absolute path, which does not depend on the worker's directory."""
    return None if path is None else absolute_path(str(path))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
