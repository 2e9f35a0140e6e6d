"""The configuration of a front, which the supervisor sends to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ServerSettings

# The program of the front, for `python -I -c`: see WORKER_PROGRAM.
FRONT_PROGRAM = """\
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
config = json.loads(control.makefile().readline())
sys.path[:] = config["path"]
from pymtp.server.front.process import run_front
run_front(control, config)
"""


@dataclass(frozen=True)
class FrontConfig:
    """The configuration of a front.

    settings: the settings of the server.
    folder: the folder of the workers' sockets, which only this user can enter and which outlives the front.
    models: the configurations of the models' workers. The served_names in their settings are the models' names.
    models_max: the most models that are loaded at a time, 0 for no limit.
    models_memory: the bytes of host memory that all loaded models may take, None for a share of the free memory.
    idle_seconds: the seconds without requests after which a model is unloaded, 0 for never.
    autoload: whether a request loads its model.
    """

    settings: ServerSettings
    models: tuple[WorkerConfig, ...]
    folder: str
    models_max: int = 0
    models_memory: int | None = None
    idle_seconds: float = 0.0
    autoload: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the config as a JSON object."""
        return {**asdict(self), "models": [model.to_json() for model in self.models]}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> FrontConfig:
        """Return the config that `to_json` has converted to a JSON object. Ignores unknown keys of the object."""
        rest = {name: message[name] for name in ("folder", "models_max", "models_memory", "idle_seconds", "autoload")}
        models = tuple(map(WorkerConfig.from_json, message["models"]))
        return cls(ServerSettings(**message["settings"]), models, **rest)
