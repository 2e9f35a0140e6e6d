"""A hub on loopback, with huggingface_hub pointed to it and a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.hub import Hub, serving
from huggingface_hub import constants

from pymtp.hub import remote_repo
from pymtp.hub.model_download import LocalFiles, download_model
from pymtp.hub.names import HubName, split_filename


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty hub.

    huggingface_hub reads its environment variables at its import; so the fixture changes its constants.
    """
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
        monkeypatch.setattr(remote_repo, "FIRST_PAUSE", 0.0)
        yield made


@pytest.fixture
def notes() -> list[str]:
    """Return the list that collects the notes of downloads."""
    return []


@pytest.fixture
def fetch(fetch_both: Callable[..., LocalFiles]) -> Callable[..., Path]:
    """Return a function that downloads a model of owner/name, and returns its path."""

    def get(filename: str | None = None, revision: str | None = None, **keywords: object) -> Path:
        return fetch_both(filename, revision, **keywords).model

    return get


@pytest.fixture
def fetch_both(hub: Hub, notes: list[str]) -> Callable[..., LocalFiles]:
    """Return a function that downloads from owner/name, and returns the paths of the model and of its head.

    filename: the model, or MODEL+HEAD for a model and its separate head.
    """

    def get(filename: str | None = None, revision: str | None = None, **keywords: object) -> LocalFiles:
        model, head = split_filename(filename)
        return download_model(HubName("owner/name", model, revision, head), notify=notes.append, **keywords)  # type: ignore[arg-type]

    return get
