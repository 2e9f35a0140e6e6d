"""Claims about hubs that lie: nothing outside the cache is touched, and each failure is one of pymtp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.hub import Hub, gguf

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub import download
from pymtp.hub.files import HubFile, is_safe, models
from pymtp.hub.names import HubName
from pymtp.hub.repository import Remote
from pymtp.hub.stand_in import headers

Pulled = Callable[..., Path]
NAME = "model-Q4_K_M.gguf"


@pytest.fixture
def listed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """What the hub says of its files; of a dict, what is other than the truth about each."""

    def say(changes: Any) -> None:
        true = hub.listing()

        def listing(_: Hub) -> Any:
            if not isinstance(changes, dict):
                return changes
            siblings: Any = true["siblings"]
            return true | {"siblings": [entry | changes for entry in siblings]}

        monkeypatch.setattr(Hub, "listing", listing)

    return say


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
def test_paths_that_leave_a_folder_are_no_files(hub: Hub, pulled: Pulled, path: str) -> None:
    assert not is_safe(path)
    hub.files |= {path: gguf(), NAME: gguf()}
    assert pulled().name == NAME
    with pytest.raises(ModelLoadError, match="has no GGUF file"):
        pulled(path)


@pytest.mark.parametrize("size", [2**62, 2**70])
def test_a_size_that_no_file_has_is_refused(
    hub: Hub, listed: Callable[[Any], None], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = data = gguf()
    listed({"size": size, "lfs": {"size": size, "sha256": "a" * 64, "pointerSize": 134}})
    monkeypatch.setattr(Remote, "bytes_of", lambda self, file, offset, n: data[offset : offset + n])
    with pytest.raises(ModelLoadError), headers(HubName("owner/name"), say=pytest.fail):
        pass


def test_paths_within_a_folder_are_files() -> None:
    assert all(map(is_safe, ("a.gguf", "a/b-Q4_K_M.gguf", "..a/b..gguf", "é ü.gguf", ".hidden")))


@pytest.mark.parametrize("etag", ["../../../victim", "/tmp/victim", "", "xyz", "A" * 64])
def test_a_hash_that_is_none_is_refused(
    hub: Hub, pulled: Pulled, listed: Callable[[Any], None], tmp_path: Path, etag: str
) -> None:
    (tmp_path / "victim").write_text("mine")
    hub.files[NAME] = gguf()
    listed({"blobId": etag, "lfs": None})
    with pytest.raises(ModelLoadError, match="names no hash"):
        pulled()
    assert (tmp_path / "victim").read_text() == "mine"


def test_small_files_are_compared_with_their_hash_too(hub: Hub, pulled: Pulled, listed: Callable[[Any], None]) -> None:
    hub.files[NAME] = gguf()
    listed({"blobId": 40 * "a", "lfs": None})
    with pytest.raises(ModelLoadError, match="damaged on its way"):
        pulled()


@pytest.mark.parametrize("said", [None, [], "text", {"lfs": 7}, {"size": "abc"}, {"lfs": {"size": 1}}])
def test_a_list_that_is_none_is_an_error_of_pymtp(
    hub: Hub, pulled: Pulled, listed: Callable[[Any], None], said: Any
) -> None:
    hub.files[NAME] = gguf()
    listed(said)
    with pytest.raises(ModelLoadError):
        pulled()


def test_a_hub_without_ranges_sends_a_file_once(hub: Hub, pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PIECE", 100_000)
    hub.files[NAME] = gguf()
    hub.faults.no_ranges = True
    assert pulled("Q4_K_M").read_bytes() == hub.files[NAME]
    assert len(hub.sent) <= 2  # the look at the header, and the file


@pytest.mark.parametrize("revision", ["..", ".", "/etc/hostname", "a/../../b", "a\x00b"])
def test_a_revision_is_no_path(hub: Hub, pulled: Pulled, revision: str) -> None:
    with pytest.raises(InvalidRequestError, match="no branch, tag or commit"):
        pulled(None, revision)
    assert hub.asked == []


@pytest.mark.parametrize("token", ["secret one", "secret\n\nX", "sécret"])
def test_a_token_that_is_none_is_refused_and_not_shown(hub: Hub, pulled: Pulled, token: str) -> None:
    with pytest.raises(InvalidRequestError, match="characters that no token has") as refused:
        pulled(token=token)
    assert "cret" not in str(refused.value)
    assert hub.asked == []


def test_a_token_that_is_wanted_and_not_there_is_told(pulled: Pulled) -> None:
    with pytest.raises(InvalidRequestError, match="token=True: there is none"):
        pulled(token=True)


def test_a_damaged_neighbour_does_not_stand_in_the_way(hub: Hub, pulled: Pulled) -> None:
    hub.files |= {"a-Q4_K_M.gguf": b"no GGUF at all", "b-Q4_K_M-00001-of-00002.gguf": gguf(), "c-Q4_K_M.gguf": gguf()}
    assert pulled("Q4_K_M").name == "c-Q4_K_M.gguf"


def test_parts_are_told_by_their_numbers() -> None:
    names = ["m-00001-of-00002.gguf", "m-00003-of-00002.gguf", "n-00000-of-00000.gguf", "o-00001-of-00001.gguf"]
    found = models(HubFile(name, 1) for name in names)
    assert [(model.name, model.missing) for model in found] == [
        ("m-00001-of-00002.gguf", 1),
        ("o-00001-of-00001.gguf", 0),
    ]
