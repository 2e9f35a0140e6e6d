"""Tests of header downloads: headers are enough to describe a model and to plan its memory."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from helpers.command import run
from helpers.hub import HEAD_ALONE, Hub, gguf
from huggingface_hub import constants
from makers.make_model import make_model

from pymtp.errors import ModelLoadError
from pymtp.hub.model_download import download_headers
from pymtp.hub.names import read_name

NAME, HEAD_NAME = "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf"
MEMORY = ("--memory", "--json", "-c", "1024")


def info(*arguments: str | Path) -> dict[str, Any]:
    found = run("info", *arguments)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def temporary_folders() -> set[Path]:
    return set(Path(gettempdir()).glob("pymtp-*"))


def test_memory_plan_downloads_only_headers(hub: Hub, demo: Path, tmp_path: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    before = temporary_folders()
    planned = info("hf:owner/name", *MEMORY)
    assert planned | {"model": NAME} == info(demo, *MEMORY) | {"model": NAME}
    assert hub.bytes_sent() < len(hub.files[NAME]) / 4
    assert not list(tmp_path.rglob("*.gguf"))
    assert temporary_folders() <= before


def test_info_downloads_only_the_header(hub: Hub, demo: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    told = info("hf:owner/name", "--json")["model"]
    assert told == info(demo, "--json")["model"] | {"file": f"{NAME} of hf:owner/name"}
    assert hub.bytes_sent() < len(hub.files[NAME]) / 4


def test_memory_of_a_split_model_is_planned_from_headers(hub: Hub, tmp_path: Path) -> None:
    parts = make_model("tiny", tmp_path / "tiny-F32.gguf", weight_type="f32", split_max_tensors=40)
    hub.files.update((part.name, part.read_bytes()) for part in parts)
    assert info("hf:owner/name", *MEMORY) == info(parts[0], *MEMORY)


def test_header_files_have_the_headers_and_sizes_of_model_and_head(hub: Hub) -> None:
    heads = [f"mtp-m-Q8_0-{i:05}-of-00002.gguf" for i in (1, 2)]
    hub.files |= {NAME: gguf(head=False, weights=10**6), heads[0]: gguf(tensors=HEAD_ALONE)}
    hub.files[heads[1]] = gguf(head=False, tensors=["blk.4.attn_q.weight"], n_tokens=0)
    with download_headers(read_name("hf:owner/name"), notify=pytest.fail) as found:
        assert found.head is not None
        for path, names in ((found.model, [NAME]), (found.head, heads)):
            for file, data in ((path.with_name(name), hub.files[name]) for name in names):
                written = file.read_bytes()
                assert (file.name in names, len(written)) == (True, len(data))
                header = data.rindex(b".weight") + 7 + 4 + 8 + 4 + 8
                assert written[:header] == data[:header]
                assert not written[header:].strip(b"\0")
    assert not found.model.exists()
    assert hub.bytes_sent() < sum(map(len, hub.files.values()))


def test_info_reads_a_cached_model(hub: Hub, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files[NAME] = demo.read_bytes()
    assert run("pull", "owner/name").returncode == 0
    hub.sent.clear()
    file = Path(info("hf:owner/name", "--json")["model"]["file"])
    assert (file.is_file(), hub.sent) == (True, [])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert info("hf:owner/name", *MEMORY) == info(demo, *MEMORY) | {"model": NAME}


def test_header_download_of_a_missing_model_is_an_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before, name = temporary_folders(), read_name("owner/name")
    for error in ("has no GGUF model", "the cache has nothing"):
        with pytest.raises(ModelLoadError, match=error), download_headers(name, notify=pytest.fail):
            pass
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert temporary_folders() <= before
