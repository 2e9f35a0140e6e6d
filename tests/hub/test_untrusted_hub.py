"""Tests of a hub that lies: no file outside the cache is touched, and each error is one of pymtp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.hub import Hub, gguf

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub import remote_repo
from pymtp.hub.files import HubFile, group_models, is_safe_path
from pymtp.hub.model_download import download_headers
from pymtp.hub.names import HubName
from pymtp.hub.remote_repo import RemoteRepo

Fetch = Callable[..., Path]
NAME = "model-Q4_K_M.gguf"


@pytest.fixture
def set_listing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that replaces the hub's file list, or, given a dict, changes values of each file."""

    def set_all(changes: Any) -> None:
        correct = hub.listing()

        def listing(_: Hub) -> Any:
            if not isinstance(changes, dict):
                return changes
            siblings: Any = correct["siblings"]
            return correct | {"siblings": [entry | changes for entry in siblings]}

        monkeypatch.setattr(Hub, "listing", listing)

    return set_all


@pytest.mark.parametrize(
    "path",
    [
        "../v.gguf",
        "a/../../v.gguf",
        "/v.gguf",
        "a\\v.gguf",
        "C:v.gguf",
        "a\x1bv.gguf",
        "a\x9bv.gguf",
        "a\ud83dv.gguf",
        "a//v",
    ],
    ids=ascii,
)
def test_unsafe_paths_are_ignored(hub: Hub, fetch: Fetch, path: str) -> None:
    assert not is_safe_path(path)
    hub.files |= {path: gguf(), NAME: gguf()}
    assert fetch().name == NAME
    with pytest.raises(ModelLoadError, match="has no GGUF file"):
        fetch(path)


@pytest.mark.parametrize("size", [2**62, 2**70])
def test_impossible_file_size_is_refused(
    hub: Hub, set_listing: Callable[[Any], None], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = data = gguf()
    set_listing({"size": size, "lfs": {"size": size, "sha256": "a" * 64, "pointerSize": 134}})
    monkeypatch.setattr(RemoteRepo, "read_range", lambda self, file, offset, n: data[offset : offset + n])
    with pytest.raises(ModelLoadError), download_headers(HubName("owner/name"), notify=pytest.fail):
        pass


def test_safe_paths_are_accepted() -> None:
    assert all(map(is_safe_path, ("a.gguf", "a/b-Q4_K_M.gguf", "..a/b..gguf", "é ü.gguf", ".hidden")))


@pytest.mark.parametrize("etag", ["../../../victim", "/tmp/victim", "", "xyz", "A" * 64])
def test_invalid_hash_is_refused(
    hub: Hub, fetch: Fetch, set_listing: Callable[[Any], None], tmp_path: Path, etag: str
) -> None:
    (tmp_path / "victim").write_text("mine")
    hub.files[NAME] = gguf()
    set_listing({"blobId": etag, "lfs": None})
    with pytest.raises(ModelLoadError, match="names no hash"):
        fetch()
    assert (tmp_path / "victim").read_text() == "mine"


def test_small_file_with_a_wrong_hash_is_refused(hub: Hub, fetch: Fetch, set_listing: Callable[[Any], None]) -> None:
    hub.files[NAME] = gguf()
    set_listing({"blobId": 40 * "a", "lfs": None})
    with pytest.raises(ModelLoadError, match="damaged on its way"):
        fetch()


@pytest.mark.parametrize("said", [None, [], "text", {"lfs": 7}, {"size": "abc"}, {"lfs": {"size": 1}}])
def test_invalid_file_list_is_a_model_load_error(
    hub: Hub, fetch: Fetch, set_listing: Callable[[Any], None], said: Any
) -> None:
    hub.files[NAME] = gguf()
    set_listing(said)
    with pytest.raises(ModelLoadError):
        fetch()


def test_hub_without_ranges_sends_a_file_once(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_repo, "CHUNK_BYTES", 100_000)
    hub.files[NAME] = gguf()
    hub.faults.no_ranges = True
    assert fetch("Q4_K_M").read_bytes() == hub.files[NAME]
    assert len(hub.sent) <= 2  # one response for the header, one for the file


@pytest.mark.parametrize("revision", ["..", ".", "/etc/hostname", "a/../../b", "a\x00b"])
def test_revision_with_an_unsafe_path_is_refused(hub: Hub, fetch: Fetch, revision: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a branch, tag or commit"):
        fetch(None, revision)
    assert hub.asked == []


@pytest.mark.parametrize("token", ["secret one", "secret\n\nX", "sécret"])
def test_invalid_token_is_refused_and_hidden(hub: Hub, fetch: Fetch, token: str) -> None:
    with pytest.raises(InvalidRequestError, match="characters that no token has") as refused:
        fetch(token=token)
    assert "cret" not in str(refused.value)
    assert hub.asked == []


def test_token_true_without_a_token_is_an_error(fetch: Fetch) -> None:
    with pytest.raises(InvalidRequestError, match="token=True, but there is no token"):
        fetch(token=True)


def test_damaged_file_does_not_block_another_one(hub: Hub, fetch: Fetch) -> None:
    hub.files |= {"a-Q4_K_M.gguf": b"no GGUF at all", "b-Q4_K_M-00001-of-00002.gguf": gguf(), "c-Q4_K_M.gguf": gguf()}
    assert fetch("Q4_K_M").name == "c-Q4_K_M.gguf"


def test_parts_of_a_split_file_are_recognized_by_their_numbers() -> None:
    names = ["m-00001-of-00002.gguf", "m-00003-of-00002.gguf", "n-00000-of-00000.gguf", "o-00001-of-00001.gguf"]
    found = group_models(HubFile(name, 1) for name in names)
    assert [(model.name, model.missing) for model in found] == [
        ("m-00001-of-00002.gguf", 1),
        ("o-00001-of-00001.gguf", 0),
    ]
