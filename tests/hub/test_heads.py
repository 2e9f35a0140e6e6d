"""Tests of separate heads: the right head is downloaded with a model, and is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.hub import HEAD, HEAD_ALONE, TRUNK, Hub, gguf
from huggingface_hub import constants
from makers.head_file import write_pair
from makers.make_model import make_model

from pymtp import LLM, AsyncLLM
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.files import HubFile, HubModel, group_models
from pymtp.hub.gguf_contents import HEAD as HEAD_ONLY
from pymtp.hub.gguf_contents import MODEL, GgufContents
from pymtp.hub.heads import find_head
from pymtp.hub.model_download import LocalFiles
from pymtp.load import fetch_named
from pymtp.options import LLMOptions

FetchBoth = Callable[..., LocalFiles]
TRUNK_NAME, HEAD_NAME = "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf"
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1}


def bare() -> bytes:
    return gguf(head=False)


def head(**options: Any) -> bytes:
    return gguf(**{"tensors": HEAD_ALONE, "weights": 2_000, **options})


@pytest.fixture
def pair(hub: Hub, tmp_path: Path) -> Hub:
    """Serve a hub with a model and its separate head; both can be loaded."""
    (whole,) = make_model("tiny", tmp_path / "tiny.gguf")
    for name, path in zip((TRUNK_NAME, HEAD_NAME), write_pair(whole, tmp_path), strict=True):
        hub.files[name] = path.read_bytes()
    return hub


@pytest.mark.parametrize(
    ("model", "heads"),  # llama.cpp takes the first head
    [
        ("m-Q8_0.gguf", ["mtp-m-Q8_0.gguf", "mtp-m-Q4_0.gguf", "mtp-m-BF16.gguf"]),
        ("m-Q4_K_M.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("m-Q4_K_M.gguf", ["mtp-m-Q4_K_M.gguf", "mtp-m-Q4_0.gguf"]),
        ("m-UD-Q5_K_XL.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("m-F16.gguf", ["mtp-m-BF16.gguf", "mtp-m-Q8_0.gguf"]),
        ("m-IQ2_XXS.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("m-Q6_K.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("m-NVFP4.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("model.gguf", ["mtp-m-Q4_0.gguf", "mtp-m-Q8_0.gguf"]),
        ("a/m-Q4_0.gguf", ["a/mtp-m-Q8_0.gguf", "mtp-m-Q4_0.gguf"]),
        ("a/m-Q4_0.gguf", ["mtp-m-Q8_0.gguf", "b/mtp-m-Q4_0.gguf"]),
        ("m-Q4_0.gguf", ["mtp-m-Q8_0.gguf", "MTP/mtp-m-Q4_0.gguf"]),
        ("m-Q8_0-00001-of-00001.gguf", ["mtp-m-Q8_0-00001-of-00002.gguf", "mtp-m-Q4_0.gguf"]),
    ],
)
def test_find_head_takes_the_head_that_llama_cpp_takes(model: str, heads: list[str]) -> None:
    names = [model, *heads, *(name.replace("00001-of", "00002-of") for name in heads if "-of-00002" in name)]
    found = group_models([HubFile(name, 1) for name in names])

    def inspect(it: HubModel) -> GgufContents:
        alone = it.name in heads
        return GgufContents(HEAD_ONLY if alone else MODEL, "qwen35", 64, alone, alone, reduced=False)

    (of,) = [each for each in found if each.name == model]
    taken = find_head(found, of, inspect)
    assert taken is not None
    assert taken.name == heads[0]
    assert taken.missing == 0


def test_separate_head_for_a_model_with_its_own_head_must_be_named(
    hub: Hub, fetch_both: FetchBoth, notes: list[str]
) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf(), HEAD_NAME: head()}
    assert fetch_both().head is None
    assert HEAD_NAME not in {answer.path for answer in hub.sent}
    found = fetch_both("Q4_K_M+Q8_0").head
    assert found is not None
    assert found.read_bytes() == hub.files[HEAD_NAME]
    assert notes == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("mtp-m-Q4_0.gguf", head(width=64)),
        ("mtp-m-Q4_0.gguf", head(architecture="qwen35moe")),
        ("mtp-m-Q4_0.gguf", head(tensors=["mtp.fc.weight", "token_embd.weight"])),
        ("mtp-m-Q4_0.gguf", head(tensors=[*HEAD_ALONE, "d2t"])),
        ("mtp-m-Q4_0.gguf", b"no GGUF"),
        ("mtp-m-Q4_0-00001-of-00002.gguf", head()),
        ("mtp-m-Q4_0.gguf", gguf()),
    ],
    ids=["width", "architecture", "names", "part of the vocabulary", "damaged", "a part of it", "a whole model"],
)
def test_find_head_skips_a_file_that_cannot_be_the_head_of_the_model(
    hub: Hub, fetch_both: FetchBoth, name: str, other: bytes
) -> None:
    hub.files |= {TRUNK_NAME: bare(), name: other}
    assert fetch_both().head is None
    hub.files[HEAD_NAME] = head()
    found = fetch_both().head
    assert found is not None
    assert found.name == HEAD_NAME


def test_named_head_of_another_model_is_refused_before_the_download(hub: Hub, fetch_both: FetchBoth) -> None:
    hub.files |= {TRUNK_NAME: bare(), "mtp-a.gguf": head(width=64), "mtp-b.gguf": head(architecture="qwen35moe")}
    with pytest.raises(ModelLoadError, match=r"mtp-a.gguf of .* does not fit m-.*: its rows have 64 values, the .* 32"):
        fetch_both("Q4_K_M+mtp-a.gguf")
    with pytest.raises(ModelLoadError, match=r"its architecture is 'qwen35moe', the model's 'qwen35'"):
        fetch_both("Q4_K_M+mtp-b.gguf")
    assert not any(answer.asked_to == len(hub.files[answer.path]) for answer in hub.sent if answer.first > 0)


def test_missing_head_note_gives_the_reason(hub: Hub, fetch_both: FetchBoth, notes: list[str]) -> None:
    hub.files |= {"a-Q4_K_M.gguf": gguf(tensors=TRUNK), "b-Q8_0.gguf": bare()}
    fetch_both("Q4_K_M")
    fetch_both("Q8_0")
    hub.files["b-FastMTP-32K.gguf"] = head(tensors=[*HEAD_ALONE, "d2t"])
    fetch_both("Q8_0")
    of = "of owner/name has no multi-token-prediction head"
    assert notes == [
        f"a-Q4_K_M.gguf {of}: it announces one, whose tensors are not there: it is decoded without a head's drafts",
        f"b-Q8_0.gguf {of}: it is decoded without a head's drafts",
        f"b-Q8_0.gguf {of}; add +b-FastMTP-32K.gguf to the name for a head with part of the vocabulary: "
        "it is decoded without a head's drafts",
    ]


def test_unused_head_is_not_downloaded(hub: Hub, fetch_both: FetchBoth, notes: list[str]) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    for wanted in (None, "Q4_K_M+Q8_0"):
        assert fetch_both(wanted, with_head=False).head is None
    assert notes == []
    assert HEAD_NAME not in {answer.path for answer in hub.sent}


def test_plus_in_a_filename_does_not_name_a_head(hub: Hub, fetch_both: FetchBoth) -> None:
    hub.files |= {"a+b-Q4_K_M.gguf": bare(), HEAD_NAME: head(), "a-Q8_0.gguf": bare()}
    for wanted in ("a+b-Q4_K_M.gguf", "*a+b*", "a+b-Q4_K_M.gguf+Q8_0"):
        found = fetch_both(wanted)
        assert [path.name for path in found if path] == ["a+b-Q4_K_M.gguf", HEAD_NAME]


def test_model_and_head_are_found_in_the_cache_offline(
    hub: Hub, fetch_both: FetchBoth, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    found = fetch_both()
    hub.asked.clear()
    hub.faults.down = True
    assert fetch_both() == found
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_both() == fetch_both("Q4_K_M+Q8_0") == found
    assert found.head is not None
    found.head.unlink()
    assert fetch_both() == LocalFiles(found.model)
    assert "has no multi-token-prediction head: it is decoded without a head's drafts" in notes[-1]
    with pytest.raises(ModelLoadError, match="the cache of owner/name has no head for 'Q8_0'; heads by"):
        fetch_both("Q4_K_M+Q8_0")


def test_head_is_downloaded_for_a_cached_model(hub: Hub, fetch_both: FetchBoth) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    fetch_both(with_head=False)
    hub.sent.clear()
    assert fetch_both().head is not None
    downloads = {answer.path for answer in hub.sent if answer.asked_to == len(hub.files[answer.path])}
    assert downloads == {HEAD_NAME}


@pytest.mark.parametrize("make", [LLM, AsyncLLM])
@pytest.mark.parametrize(
    ("names", "keywords", "comes"),
    [
        (("owner/name",), {}, True),
        (("owner/name", "Q4_K_M+Q8_0"), {}, True),
        (("owner/name:+Q8_0",), {"head_filename": "Q8_0"}, True),
        (("owner/name",), {"head_filename": HEAD_NAME}, True),
        (("owner/name",), {"draft_tokens": 0}, False),
        (("owner/name", "Q4_K_M+Q8_0"), {"draft_tokens": 0}, False),
    ],
)
def test_from_pretrained_loads_the_head(
    pair: Hub, make: Any, names: tuple[str, ...], keywords: dict[str, Any], comes: bool
) -> None:
    llm = make.from_pretrained(*names, **SMALL, **keywords)
    given = (llm.llm if make is AsyncLLM else llm).model.options.head
    assert (given is not None and Path(given).name == HEAD_NAME) == comes
    assert (HEAD_NAME in {answer.path for answer in pair.sent}) == comes
    llm._close() if make is AsyncLLM else llm.close()


@pytest.mark.parametrize(
    ("names", "keywords", "why"),
    [
        (("owner/name",), {"head_filename": 5}, "head_filename=5 must be"),
        (
            ("owner/name", "Q4_K_M+Q8_0"),
            {"head_filename": "Q4_0"},
            "head_filename='Q4_0', but .* asks for Q8_0",
        ),
        (("owner/name:+Q8_0", "Q4_K_M+Q4_0"), {}, "filename='Q4_0', but owner/name:.Q8_0 asks for Q8_0: give one"),
        (("owner/name", "Q4_K_M+"), {}, "names no head after its ."),
        (
            ("owner/name", "+Q8_0"),
            {"head": "mine.gguf"},
            "two heads .* head='mine.gguf' and Q8_0 of owner/name: give one",
        ),
        (
            ("owner/name",),
            {"head": "a.gguf", "head_filename": "Q8_0"},
            "head='a.gguf' and Q8_0 of owner/name: give one",
        ),
    ],
)
def test_from_pretrained_refuses_two_heads_before_the_download(
    hub: Hub,
    names: tuple[str, ...],
    keywords: dict[str, Any],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for head in ("mine.gguf", "a.gguf"):
        Path(head).touch()
    with pytest.raises(InvalidRequestError, match=why):
        LLM.from_pretrained(*names, **keywords)
    assert hub.asked == []


def test_local_head_replaces_the_head_of_the_repository(hub: Hub, notes: list[str], tmp_path: Path) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    mine = tmp_path / "mine.gguf"
    mine.touch()
    found = fetch_named(LLMOptions("hf:owner/name", head=mine), notes.append)
    assert (Path(str(found.model)).name, found.head, notes) == (TRUNK_NAME, str(mine), [])
    assert HEAD_NAME not in {answer.path for answer in hub.sent}
    local = LLMOptions("file.gguf", n_ctx=5)
    assert fetch_named(local) is local


def test_head_is_downloaded_for_an_adapter(hub: Hub, notes: list[str], tmp_path: Path) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    (tmp_path / "a.gguf").touch()
    found = fetch_named(LLMOptions("hf:owner/name", draft_tokens=0, lora=tmp_path / "a.gguf"), notes.append)
    assert Path(str(found.head)).name == HEAD_NAME


def test_download_fetches_all_parts_of_a_split_head(hub: Hub, fetch_both: FetchBoth) -> None:
    parts = [f"mtp-m-Q8_0-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    hub.files[TRUNK_NAME] = bare()
    hub.files |= dict(
        zip(parts, [head(tensors=["token_embd.weight"]), head(head=False, tensors=[]), head(tensors=HEAD)], strict=True)
    )
    found = fetch_both().head
    assert found is not None
    assert found.name == parts[0]
    assert [found.with_name(part).read_bytes() for part in parts] == [hub.files[part] for part in parts]
