"""Tests of the projectors that belong to models: on the hub, and beside a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.hub import Hub, gguf, number
from makers.gguf_parts import STRING, Key

from pymtp.hub import from_pretrained
from pymtp.hub.from_pretrained import fetch_headers, fetch_model
from pymtp.hub.model_download import LocalFiles
from pymtp.hub.names import HubName
from pymtp.hub.projectors import KIND, projectors_beside
from pymtp.options import LLMOptions

FetchBoth = Callable[..., LocalFiles]


def mmproj(width: int = 32, kind: str = KIND) -> bytes:
    keys = [number("clip.vision.projection_dim", width), Key(b"clip.projector_type", STRING, [kind.encode()])]
    return gguf(architecture="clip", kind="mmproj", head=False, width=0, weights=2000, n_tokens=0, keys=keys)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["mmproj-F32.gguf", "mmproj-BF16.gguf"], "mmproj-BF16.gguf"),
        (["mmproj-F16.gguf", "mmproj-Q8_0.gguf"], "mmproj-Q8_0.gguf"),
        (["other/mmproj-Q4_K_M.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["m-mmproj.gguf"], "m-mmproj.gguf"),
        ([], None),
    ],
)
def test_projector_of_a_repository_is_the_one_that_llama_cpp_takes(
    hub: Hub, fetch_both: FetchBoth, files: list[str], chosen: str | None
) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf()} | {name: mmproj() for name in files}
    projector = fetch_both().projector
    assert (projector and projector.name) == chosen


def test_projectors_of_other_models_and_damaged_ones_are_not_taken(hub: Hub, fetch_both: FetchBoth) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf(), "mmproj-F16.gguf": mmproj(64), "mmproj-BF16.gguf": b"GGUF"}
    hub.files["mmproj-Q8_0.gguf"] = mmproj(kind="pixtral")
    assert fetch_both().projector is None
    hub.files["mmproj-F32.gguf"] = mmproj()
    found = fetch_both().projector
    assert found is not None
    assert found.read_bytes() == mmproj()


def test_projector_is_only_downloaded_where_the_options_name_none(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf(), "mmproj-F16.gguf": mmproj()}
    name, own = HubName("owner/name"), tmp_path / "own.gguf"
    assert fetch_model(name, LLMOptions(mmproj=False), notify=print).mmproj is False
    assert fetch_model(name, LLMOptions(mmproj=own), notify=print).mmproj == str(own)
    assert fetch_model(name, LLMOptions(), with_projector=False, notify=print).mmproj is None
    assert not [sent for sent in hub.sent if "mmproj" in sent.path]
    found = fetch_model(name, LLMOptions(), notify=print).mmproj
    assert isinstance(found, str)
    assert Path(found).read_bytes() == mmproj()


def test_headers_of_a_model_have_the_size_of_its_projector(hub: Hub) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf(), "mmproj-F16.gguf": mmproj()}
    with fetch_headers(HubName("owner/name"), LLMOptions(), notify=print) as options:
        assert options.mmproj_bytes() == len(mmproj())


def test_from_pretrained_gives_the_projector_to_the_constructor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Made(from_pretrained.HubMixin):
        def __init__(self, model: str, **keywords: object) -> None:
            self.keywords = keywords

    files = LocalFiles(tmp_path / "m.gguf", None, tmp_path / "mmproj.gguf")
    monkeypatch.setattr(from_pretrained, "download_model", lambda *_, **__: files)
    assert Made.from_pretrained("owner/name").keywords == {"mmproj": str(tmp_path / "mmproj.gguf")}
    files = LocalFiles(tmp_path / "m.gguf")
    assert Made.from_pretrained("owner/name", mmproj=False).keywords == {"mmproj": False}


def test_projectors_beside_a_file_are_those_of_its_kind_and_width(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(gguf())
    assert projectors_beside(model) == []
    for name, data in (("mmproj-a.gguf", mmproj()), ("mmproj-b.gguf", mmproj(64)), ("mmproj-c.gguf", b"GGUF")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "mmproj-f.gguf").write_bytes(mmproj(kind="pixtral"))
    (tmp_path / "mmproj-d.gguf").mkdir()
    (tmp_path / "mmproj-e.gguf").write_bytes(gguf())
    assert projectors_beside(model) == [tmp_path / "mmproj-a.gguf"]
    assert projectors_beside(tmp_path / "none.gguf") == []
    model.write_bytes(gguf(architecture="qwen3next"))  # it has no positions of images
    assert projectors_beside(model) == []
