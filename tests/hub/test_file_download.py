"""Tests of file downloads: they resume, end complete or with a clear error, and huggingface_hub finds the files."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.hub import Hub, gguf
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

from pymtp.errors import ModelLoadError
from pymtp.hub import remote_repo

Fetch = Callable[..., Path]
NAME = "model-Q4_K_M.gguf"


@pytest.fixture
def data(hub: Hub) -> bytes:
    """Return the bytes of the only file of the hub."""
    hub.files[NAME] = gguf(weights=1_000_000)
    return hub.files[NAME]


def incomplete(folder: Path) -> list[int]:
    """Return the sizes of incomplete downloads."""
    return [path.stat().st_size for path in folder.rglob("*.incomplete")]


def downloads(hub: Hub) -> list[int]:
    """Return the offsets of responses that reach the end of the file: downloads, not reads of the header."""
    return [answer.first for answer in hub.sent if answer.asked_to == len(hub.files[NAME])]


def test_download_is_found_by_huggingface_hub(hub: Hub, data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    path = fetch()
    assert path.read_bytes() == data
    assert try_to_load_from_cache("owner/name", NAME) == str(path)
    hub.sent.clear()
    assert hf_hub_download("owner/name", NAME) == str(path)
    assert (hub.sent, incomplete(tmp_path)) == ([], [])


def test_file_cached_by_huggingface_hub_is_used(hub: Hub, data: bytes, fetch: Fetch) -> None:
    path = hf_hub_download("owner/name", NAME)
    hub.sent.clear()
    assert str(fetch()) == path
    assert hub.sent == []


def test_interrupted_download_is_resumed(hub: Hub, data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    hub.faults.cut_after, hub.faults.cuts, hub.faults.busy_after_cuts = 600_000, 1, True
    with pytest.raises(ModelLoadError, match="answers 503 for owner/name"):
        fetch()
    assert incomplete(tmp_path) == [600_000]
    hub.faults.busy = 0
    hub.sent.clear()
    assert fetch().read_bytes() == data
    assert downloads(hub) == [600_000]
    assert sum(answer.n for answer in hub.sent if answer.first) == len(data) - 600_000


def test_download_reconnects_after_each_lost_connection(hub: Hub, data: bytes, fetch: Fetch) -> None:
    hub.faults.cut_after = 100_000
    assert fetch().read_bytes() == data
    assert downloads(hub) == list(range(0, len(data), 100_000))
    assert len(downloads(hub)) > remote_repo.MAX_TRIES


def test_download_retries_a_busy_hub(hub: Hub, data: bytes, fetch: Fetch) -> None:
    hub.faults.busy = remote_repo.MAX_TRIES - 1
    assert fetch().read_bytes() == data
    assert hub.faults.busy == 0


def test_download_gives_up_after_max_tries(hub: Hub, data: bytes, fetch: Fetch) -> None:
    hub.faults.busy = 100
    with pytest.raises(ModelLoadError, match="answers 503"):
        fetch()
    assert hub.faults.busy == 100 - remote_repo.MAX_TRIES


def test_header_read_retries_a_busy_hub(hub: Hub, fetch: Fetch) -> None:
    hub.files[NAME] = gguf(late=True, weights=1000)  # the read of the header reaches the end of the file
    hub.faults.busy = remote_repo.MAX_TRIES - 1
    assert fetch().read_bytes() == hub.files[NAME]


def test_error_hides_the_password_of_the_endpoint(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url.replace("://", "://me:secret@"))
    hub.files[NAME] = gguf(weights=1000)
    hub.faults.busy = 100
    with pytest.raises(ModelLoadError, match="answers 503") as error:
        fetch()
    assert "secret" not in str(error.value)


def test_large_file_is_downloaded_in_chunks(
    hub: Hub, data: bytes, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_repo, "CHUNK_BYTES", 400_000)
    assert fetch().read_bytes() == data
    assert [answer.first for answer in hub.sent[1:]] == list(range(0, len(data), 400_000))


def test_download_from_a_hub_without_ranges_restarts(hub: Hub, data: bytes, fetch: Fetch) -> None:
    hub.faults.no_ranges = True
    hub.faults.cut_after, hub.faults.cuts = 700_000, 2  # the first cut happens during the read of the header
    assert fetch().read_bytes() == data
    assert [(answer.first, answer.n) for answer in hub.sent] == [(0, 700_000)] * 2 + [(0, len(data))]


def test_download_with_a_wrong_hash_is_refused(hub: Hub, data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    hub.faults.last_byte_changed = True
    with pytest.raises(ModelLoadError, match="damaged on its way"):
        fetch()
    assert incomplete(tmp_path) == []  # the damaged bytes were deleted
    hub.faults.last_byte_changed = False
    assert fetch().read_bytes() == data


@pytest.mark.parametrize("wrong", [-1, 1])
def test_download_with_a_wrong_size_is_refused(hub: Hub, data: bytes, fetch: Fetch, wrong: int) -> None:
    hub.faults.listed_size = len(data) + wrong
    with pytest.raises(ModelLoadError, match=f"is {len(data) + wrong:,} bytes by the hub's list, but {len(data):,}"):
        fetch()


def test_truncated_cached_file_is_downloaded_again(data: bytes, fetch: Fetch) -> None:
    path = fetch()
    with open(path, "r+b") as file:
        file.truncate(1000)
    assert fetch().read_bytes() == data


def test_too_long_partial_download_is_dropped(hub: Hub, data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    blobs = tmp_path / "cache/models--owner--name/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag(NAME)}.incomplete").write_bytes(data + b"more")
    assert fetch().read_bytes() == data


def test_concurrent_downloads_fetch_a_file_once(hub: Hub, data: bytes, fetch: Fetch) -> None:
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: fetch(), range(2))
    assert one == two
    assert one.read_bytes() == data
    assert downloads(hub) == [0]


def test_too_small_disk_is_an_error_before_the_download(
    hub: Hub, data: bytes, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000))
    with pytest.raises(ModelLoadError, match="set HF_HUB_CACHE to another folder"):
        fetch()
    assert downloads(hub) == []


def test_unwritable_cache_is_an_error(data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match="cannot read or write owner/name in the cache"):
        fetch()


def test_cache_dir_is_the_folder_of_the_cache(data: bytes, fetch: Fetch, tmp_path: Path) -> None:
    assert fetch(cache_dir=tmp_path / "other").is_relative_to(tmp_path / "other")
    assert not (tmp_path / "cache").exists()
