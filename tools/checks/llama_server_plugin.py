"""Plugin of pytest for the tests of llama.cpp's server: it keeps them from downloading models, and changes no test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def download(url: str, out: str) -> None:
    """Create an empty file in place of a download: the shim has a model of its own."""
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).touch()


# The tests import the package wget before any hook of a plugin is called.
sys.modules["wget"] = ModuleType("wget")
sys.modules["wget"].download = download  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Leave out the start of all servers at the beginning of a session, which would download their models."""
    sys.modules["utils"].ServerPreset.load_all = staticmethod(lambda: None)  # type: ignore[attr-defined]
