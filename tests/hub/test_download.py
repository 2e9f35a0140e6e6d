"""Claims about downloads: they go on, end whole or with a clear error, and leave what huggingface_hub knows."""

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
from pymtp.hub import download, errors

Pulled = Callable[..., Path]
NAME = "model-Q4_K_M.gguf"


@pytest.fixture
def data(hub: Hub) -> bytes:
    """The only file of the hub."""
    hub.files[NAME] = gguf(weights=1_000_000)
    return hub.files[NAME]


def incomplete(folder: Path) -> list[int]:
    """The bytes of downloads that are not whole."""
    return [path.stat().st_size for path in folder.rglob("*.incomplete")]


def downloads(hub: Hub) -> list[int]:
    """Where answers began that reach the file's end: not those of looks at the header."""
    return [answer.first for answer in hub.sent if answer.asked_to == len(hub.files[NAME])]


def test_a_file_lands_where_huggingface_hub_looks_for_it(hub: Hub, data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    path = pulled()
    assert path.read_bytes() == data
    assert try_to_load_from_cache("owner/name", NAME) == str(path)
    hub.sent.clear()
    assert hf_hub_download("owner/name", NAME) == str(path)
    assert (hub.sent, incomplete(tmp_path)) == ([], [])


def test_what_huggingface_hub_brought_is_taken(hub: Hub, data: bytes, pulled: Pulled) -> None:
    path = hf_hub_download("owner/name", NAME)
    hub.sent.clear()
    assert str(pulled()) == path
    assert hub.sent == []


def test_an_interrupted_download_goes_on_where_it_was(hub: Hub, data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    hub.faults.cut_after, hub.faults.cuts, hub.faults.busy_after_cuts = 600_000, 1, True
    with pytest.raises(ModelLoadError, match="answers 503 for owner/name"):
        pulled()
    assert incomplete(tmp_path) == [600_000]
    hub.faults.busy = 0
    hub.sent.clear()
    assert pulled().read_bytes() == data
    assert downloads(hub) == [600_000]
    assert sum(answer.n for answer in hub.sent if answer.first) == len(data) - 600_000


def test_a_connection_that_breaks_is_made_again(hub: Hub, data: bytes, pulled: Pulled) -> None:
    hub.faults.cut_after = 300_000
    assert pulled().read_bytes() == data
    assert downloads(hub) == list(range(0, len(data), 300_000))


def test_a_busy_hub_is_asked_again(hub: Hub, data: bytes, pulled: Pulled) -> None:
    hub.faults.busy = errors.TRIES - 1
    assert pulled().read_bytes() == data
    assert hub.faults.busy == 0


def test_a_hub_that_stays_busy_is_given_up(hub: Hub, data: bytes, pulled: Pulled) -> None:
    hub.faults.busy = 100
    with pytest.raises(ModelLoadError, match="answers 503"):
        pulled()
    assert hub.faults.busy == 100 - errors.TRIES


def test_a_hub_that_is_busy_when_the_header_is_looked_at_is_asked_again(hub: Hub, pulled: Pulled) -> None:
    hub.files[NAME] = gguf(late=True, weights=1000)  # what is looked at reaches the file's end
    hub.faults.busy = errors.TRIES - 1
    assert pulled().read_bytes() == hub.files[NAME]


def test_a_password_of_the_hub_s_address_is_not_shown(
    hub: Hub, pulled: Pulled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url.replace("://", "://me:secret@"))
    hub.files[NAME] = gguf(weights=1000)
    hub.faults.busy = 100
    with pytest.raises(ModelLoadError, match="answers 503") as error:
        pulled()
    assert "secret" not in str(error.value)


def test_a_large_file_comes_in_pieces(hub: Hub, data: bytes, pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PIECE", 400_000)
    assert pulled().read_bytes() == data
    assert [answer.first for answer in hub.sent[1:]] == list(range(0, len(data), 400_000))


def test_a_hub_without_ranges_begins_anew(hub: Hub, data: bytes, pulled: Pulled) -> None:
    hub.faults.no_ranges = True
    hub.faults.cut_after, hub.faults.cuts = 700_000, 2  # the first when the header is looked at
    assert pulled().read_bytes() == data
    assert [(answer.first, answer.n) for answer in hub.sent] == [(0, 700_000)] * 2 + [(0, len(data))]


def test_a_file_that_is_damaged_on_its_way_is_refused(hub: Hub, data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    hub.faults.last_byte_changed = True
    with pytest.raises(ModelLoadError, match="damaged on its way"):
        pulled()
    assert incomplete(tmp_path) == []  # nothing wrong is gone on with
    hub.faults.last_byte_changed = False
    assert pulled().read_bytes() == data


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_file_of_another_size_than_listed_is_refused(hub: Hub, data: bytes, pulled: Pulled, wrong: int) -> None:
    hub.faults.listed_size = len(data) + wrong
    with pytest.raises(ModelLoadError, match=f"is {len(data) + wrong:,} bytes by the hub's list, but {len(data):,}"):
        pulled()


def test_a_cached_file_that_was_cut_is_brought_again(data: bytes, pulled: Pulled) -> None:
    path = pulled()
    with open(path, "r+b") as file:
        file.truncate(1000)
    assert pulled().read_bytes() == data


def test_too_many_bytes_of_an_earlier_run_are_dropped(hub: Hub, data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    blobs = tmp_path / "cache/models--owner--name/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag(NAME)}.incomplete").write_bytes(data + b"more")
    assert pulled().read_bytes() == data


def test_two_at_once_download_once(hub: Hub, data: bytes, pulled: Pulled) -> None:
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: pulled(), range(2))
    assert one == two
    assert one.read_bytes() == data
    assert downloads(hub) == [0]


def test_a_full_disk_is_told_before_the_download(
    hub: Hub, data: bytes, pulled: Pulled, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000))
    with pytest.raises(ModelLoadError, match="HF_HUB_CACHE names another folder"):
        pulled()
    assert downloads(hub) == []


def test_a_cache_that_cannot_be_written_is_told(data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match="cannot read or write owner/name in the cache"):
        pulled()


def test_the_cache_may_be_elsewhere(data: bytes, pulled: Pulled, tmp_path: Path) -> None:
    assert pulled(cache_dir=tmp_path / "other").is_relative_to(tmp_path / "other")
    assert not (tmp_path / "cache").exists()
