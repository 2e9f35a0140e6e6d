"""Modules that are imported when a test first uses them: imports of clients take each worker seconds at its start."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """Stands for a module until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks each object of a test file for these
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


anthropic = LateModule("anthropic")
openai = LateModule("openai")
