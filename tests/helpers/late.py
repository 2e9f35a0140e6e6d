"""Modules that are imported when a test first uses them: imports of clients and Ray take each worker seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """Stands for a module until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks each object of a test file for some, like _mock_name
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


anthropic = LateModule("anthropic")
ollama = LateModule("ollama")
openai = LateModule("openai")

# What imports Ray Serve
ray_front = LateModule("pymtp.ray.front")
ray_replica = LateModule("pymtp.ray.replica")
ray_serve = LateModule("pymtp.ray.serve")
ray_exceptions = LateModule("ray.exceptions")
ray_serve_exceptions = LateModule("ray.serve.exceptions")
