"""The configuration of a worker process, and the messages from the worker to the supervisor.

The supervisor and the worker talk over a socket pair, with one JSON object per line. The supervisor sends the
WorkerConfig; after that, only the worker sends messages. When one process exits, the other one reads the end of the
stream. The config is not sent as command line arguments, because all users of the machine could read its API keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pymtp.server.settings import ServerSettings
from pymtp.validation import absolute_path

# The program of the worker, for `python -I -c`. Because of -I, the import path does not depend on the environment or
# the working directory; the program sets it to the supervisor's sys.path. The argument of the program is the file
# descriptor of the socket to the supervisor.
WORKER_PROGRAM = """\
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
config = json.loads(control.makefile().readline())
sys.path[:] = config["path"]
from pymtp.server.process.worker import run_worker
run_worker(control, config)
"""

READY, FAILED, HEARTBEAT = "ready", "failed", "beat"  # the keys that tell the kind of a worker's message
FILE, HEAD = "file", "head"  # further keys of READY, for paths; HEAD is None if the model's file contains the head


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker process.

    settings: the settings of the server.
    model: the path of a model file, or the name of a model on the hub; None for the shipped model.
    llm: the keyword arguments of LLM.
    prefix: the file of a saved prefix that the worker loads; None for no prefix.
    """

    settings: ServerSettings = field(default_factory=ServerSettings)
    model: str | None = None
    llm: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the config as a JSON object."""
        return {**asdict(self), "prefix": _text(self.prefix)}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> WorkerConfig:
        """Return the config that `to_json` has converted to a JSON object. Ignores unknown keys of the object."""
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in message["settings"].items()
        }
        return cls(ServerSettings(**settings), message["model"], message["llm"], _path(message["prefix"]))


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line of JSON."""
    return json.dumps(message).encode() + b"\n"


def _text(path: Path | None) -> str | None:
    """Return the path as an absolute path, because the worker may have another working directory."""
    return None if path is None else absolute_path(str(path))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
