"""Claims about looks at models of the hub: headers are enough to describe one and to plan its memory."""

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
from pymtp.hub.names import read_name
from pymtp.hub.stand_in import headers

NAME, HEAD_NAME = "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf"
MEMORY = ("--memory", "--json", "-c", "1024")


def info(*arguments: str | Path) -> dict[str, Any]:
    found = run("info", *arguments)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def left_behind() -> set[Path]:
    return set(Path(gettempdir()).glob("pymtp-*"))


def test_memory_is_planned_from_headers_alone(hub: Hub, demo: Path, tmp_path: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    before = left_behind()
    planned = info("hf:owner/name", *MEMORY)
    assert planned | {"model": NAME} == info(demo, *MEMORY) | {"model": NAME}
    assert hub.bytes_sent() < len(hub.files[NAME]) / 4
    assert not list(tmp_path.rglob("*.gguf"))
    assert left_behind() <= before


def test_a_model_is_described_by_its_header_alone(hub: Hub, demo: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    told = info("hf:owner/name", "--json")["model"]
    assert told == info(demo, "--json")["model"] | {"file": f"{NAME} of hf:owner/name"}
    assert hub.bytes_sent() < len(hub.files[NAME]) / 4


def test_memory_of_a_split_model_is_planned(hub: Hub, tmp_path: Path) -> None:
    parts = make_model("tiny", tmp_path / "tiny-F32.gguf", weight_type="f32", split_max_tensors=40)
    hub.files.update((part.name, part.read_bytes()) for part in parts)
    assert info("hf:owner/name", *MEMORY) == info(parts[0], *MEMORY)


def test_a_model_and_its_head_stand_in_with_their_headers_and_sizes(hub: Hub) -> None:
    heads = [f"mtp-m-Q8_0-{i:05}-of-00002.gguf" for i in (1, 2)]
    hub.files |= {NAME: gguf(head=False, weights=10**6), heads[0]: gguf(tensors=HEAD_ALONE)}
    hub.files[heads[1]] = gguf(head=False, tensors=["blk.4.attn_q.weight"], n_tokens=0)
    with headers(read_name("hf:owner/name"), say=pytest.fail) as found:
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


def test_what_the_cache_has_is_looked_at_there(hub: Hub, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files[NAME] = demo.read_bytes()
    assert run("pull", "owner/name").returncode == 0
    hub.sent.clear()
    file = Path(info("hf:owner/name", "--json")["model"]["file"])
    assert (file.is_file(), hub.sent) == (True, [])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert info("hf:owner/name", *MEMORY) == info(demo, *MEMORY) | {"model": NAME}


def test_what_is_not_there_to_look_at_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before, name = left_behind(), read_name("owner/name")
    for error in ("has no GGUF model", "the cache has nothing"):
        with pytest.raises(ModelLoadError, match=error), headers(name, say=pytest.fail):
            pass
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert left_behind() <= before
