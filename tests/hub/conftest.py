"""A hub on loopback, with huggingface_hub pointed to it and a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.hub import Hub, serving
from huggingface_hub import constants

from pymtp.hub import errors
from pymtp.hub.names import HubName, read_wanted
from pymtp.hub.pull import Pulled, pull


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Empty so far. huggingface_hub reads its variables when it is imported: here they are set in its constants."""
    with serving({}) as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        template = f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(errors, "PAUSE", 0.0)
        yield made


@pytest.fixture
def notes() -> list[str]:
    """What pulls had to say."""
    return []


@pytest.fixture
def pulled(both: Callable[..., Pulled]) -> Callable[..., Path]:
    """Pulls from owner/name, and returns the model's path."""

    def get(wanted: str | None = None, revision: str | None = None, **keywords: object) -> Path:
        return both(wanted, revision, **keywords).model

    return get


@pytest.fixture
def both(hub: Hub, notes: list[str]) -> Callable[..., Pulled]:
    """Pulls from owner/name, and returns the paths of the model and of its head. wanted: MODEL+HEAD."""

    def get(wanted: str | None = None, revision: str | None = None, **keywords: object) -> Pulled:
        model, head = read_wanted(wanted)
        return pull(HubName("owner/name", model, revision, head), say=notes.append, **keywords)  # type: ignore[arg-type]

    return get
