"""The configuration of a worker process, and the messages from the worker to the supervisor.

The supervisor and the worker talk over a socket pair, with one JSON object per line. The supervisor sends the
WorkerConfig; after that, only the worker sends messages. When one process exits, the other one reads the end of the
stream. The config is not sent as command line arguments, because all users of the machine could read its API keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pymtp.options import LLMOptions
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
# further keys of READY, for paths; HEAD is None if the model's file contains the head, PROJECTOR without one
FILE, HEAD, PROJECTOR = "file", "head", "projector"
CARD = "card"  # a further key of READY: the model's card in /v1/models


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker process.

    settings: the settings of the server.
    llm: the options of the LLM, whose model is a path, a name of the hub, or None.
    prefix: the file of a saved prefix that the worker loads; None for no prefix.
    fit: the names of the options that the worker chooses by the free memory: see pymtp.server.memory.
    behind_front: whether requests come from a front, which names the client and has checked its API key.
    """

    settings: ServerSettings
    llm: LLMOptions
    prefix: Path | None = None
    fit: tuple[str, ...] = ()
    behind_front: bool = False

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of the model; without given ones, a name that is made of its file's."""
        model = self.llm.model
        return self.settings.served_names or ("demo" if model is None else Path(str(model)).stem,)

    def to_json(self) -> dict[str, Any]:
        """Return the config as a JSON object."""
        # absolute, because the worker may have another working directory
        return {**asdict(self), "prefix": None if self.prefix is None else absolute_path(str(self.prefix))}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> WorkerConfig:
        """Return the config that `to_json` has converted to a JSON object. Ignores unknown keys of the object."""
        prefix = None if message["prefix"] is None else Path(message["prefix"])
        settings, llm = ServerSettings(**message["settings"]), LLMOptions(**message["llm"])
        return cls(settings, llm, prefix, tuple(message["fit"]), message["behind_front"])


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line of JSON."""
    return json.dumps(message).encode() + b"\n"
