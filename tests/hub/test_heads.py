"""Claims about heads in files of their own: which one comes with a model, and that it gets to where it is used."""

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
from pymtp.hub.companion import find_head
from pymtp.hub.contents import HEAD as ALONE
from pymtp.hub.contents import MODEL, Contents
from pymtp.hub.files import HubFile, HubModel, models
from pymtp.hub.pull import Pulled
from pymtp.load import brought

Both = Callable[..., Pulled]
TRUNK_NAME, HEAD_NAME = "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf"
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1}


def bare() -> bytes:
    return gguf(head=False)


def head(**options: Any) -> bytes:
    return gguf(**{"tensors": HEAD_ALONE, "weights": 2_000, **options})


@pytest.fixture
def pair(hub: Hub, tmp_path: Path) -> Hub:
    """A hub with a model and its head, both of which load."""
    (whole,) = make_model("tiny", tmp_path / "tiny.gguf")
    for name, path in zip((TRUNK_NAME, HEAD_NAME), write_pair(whole, tmp_path), strict=True):
        hub.files[name] = path.read_bytes()
    return hub


@pytest.mark.parametrize(
    ("model", "heads"),  # the first of which llama.cpp takes
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
def test_head_is_the_one_that_llama_cpp_takes(model: str, heads: list[str]) -> None:
    names = [model, *heads, *(name.replace("00001-of", "00002-of") for name in heads if "-of-00002" in name)]
    found = models([HubFile(name, 1) for name in names])

    def look(it: HubModel) -> Contents:
        alone = it.name in heads
        return Contents(ALONE if alone else MODEL, "qwen35", 64, alone, alone, reduced=False)

    (of,) = [each for each in found if each.name == model]
    taken = find_head(found, of, look)
    assert taken is not None
    assert taken.name == heads[0]
    assert taken.missing == 0


def test_model_with_a_head_within_gets_no_other_unless_it_is_asked_for(hub: Hub, both: Both, notes: list[str]) -> None:
    hub.files |= {"m-Q4_K_M.gguf": gguf(), HEAD_NAME: head()}
    assert both().head is None
    assert HEAD_NAME not in {answer.path for answer in hub.sent}
    found = both("Q4_K_M+Q8_0").head
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
def test_file_that_is_no_head_for_the_model_does_not_come(hub: Hub, both: Both, name: str, other: bytes) -> None:
    hub.files |= {TRUNK_NAME: bare(), name: other}
    assert both().head is None
    hub.files[HEAD_NAME] = head()
    found = both().head
    assert found is not None
    assert found.name == HEAD_NAME


def test_head_that_cannot_fit_is_refused_with_both_numbers_before_it_comes(hub: Hub, both: Both) -> None:
    hub.files |= {TRUNK_NAME: bare(), "mtp-a.gguf": head(width=64), "mtp-b.gguf": head(architecture="qwen35moe")}
    with pytest.raises(ModelLoadError, match=r"mtp-a.gguf of .* does not fit m-.*: its rows have 64 values, the .* 32"):
        both("Q4_K_M+mtp-a.gguf")
    with pytest.raises(ModelLoadError, match=r"its architecture is 'qwen35moe', the model's 'qwen35'"):
        both("Q4_K_M+mtp-b.gguf")
    assert not any(answer.asked_to == len(hub.files[answer.path]) for answer in hub.sent if answer.first > 0)


def test_model_without_a_head_is_told_with_the_reason(hub: Hub, both: Both, notes: list[str]) -> None:
    hub.files |= {"a-Q4_K_M.gguf": gguf(tensors=TRUNK), "b-Q8_0.gguf": bare()}
    both("Q4_K_M")
    both("Q8_0")
    hub.files["b-FastMTP-32K.gguf"] = head(tensors=[*HEAD_ALONE, "d2t"])
    both("Q8_0")
    of = "of owner/name has no multi-token-prediction head"
    assert notes == [
        f"a-Q4_K_M.gguf {of}: it announces one, whose tensors are not there: it is decoded without drafts",
        f"b-Q8_0.gguf {of}: it is decoded without drafts",
        f"b-Q8_0.gguf {of}; one for part of the vocabulary is asked for by +b-FastMTP-32K.gguf: "
        "it is decoded without drafts",
    ]


def test_a_head_for_which_there_is_no_use_does_not_come(hub: Hub, both: Both, notes: list[str]) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    for wanted in (None, "Q4_K_M+Q8_0"):
        assert both(wanted, with_head=False).head is None
    assert notes == []
    assert HEAD_NAME not in {answer.path for answer in hub.sent}


def test_a_name_with_a_plus_is_that_of_a_file_where_there_is_one(hub: Hub, both: Both) -> None:
    hub.files |= {"a+b-Q4_K_M.gguf": bare(), HEAD_NAME: head(), "a-Q8_0.gguf": bare()}
    for wanted in ("a+b-Q4_K_M.gguf", "*a+b*", "a+b-Q4_K_M.gguf+Q8_0"):
        found = both(wanted)
        assert [path.name for path in found if path] == ["a+b-Q4_K_M.gguf", HEAD_NAME]


def test_both_files_are_known_offline(hub: Hub, both: Both, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    found = both()
    hub.asked.clear()
    hub.faults.down = True
    assert both() == found
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert both() == both("Q4_K_M+Q8_0") == found
    assert found.head is not None
    found.head.unlink()
    assert both() == (found.model, None)
    assert "has no multi-token-prediction head: it is decoded without drafts" in notes[-1]
    with pytest.raises(ModelLoadError, match="the cache of owner/name has no head for 'Q8_0'; heads by"):
        both("Q4_K_M+Q8_0")


def test_a_head_comes_after_its_model_was_there_alone(hub: Hub, both: Both) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    both(with_head=False)
    hub.sent.clear()
    assert both().head is not None
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
def test_from_pretrained_gives_the_head_to_the_llm(
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
        (("owner/name:+Q8_0", "Q4_K_M+Q4_0"), {}, "filename='Q4_0', but owner/name:.Q8_0 asks for Q8_0: ask once"),
        (("owner/name", "Q4_K_M+"), {}, "names no head after its ."),
        (
            ("owner/name", "+Q8_0"),
            {"head": "mine.gguf"},
            "two heads .* head='mine.gguf' and Q8_0 of owner/name: name one",
        ),
        (
            ("owner/name",),
            {"head": "a.gguf", "head_filename": "Q8_0"},
            "head='a.gguf' and Q8_0 of owner/name: name one",
        ),
    ],
)
def test_two_heads_are_refused_before_the_hub_is_asked(
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


def test_a_head_of_one_s_own_leaves_the_repository_s_where_it_is(hub: Hub, notes: list[str]) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    file, keywords = brought("hf:owner/name", {"head": "mine.gguf"}, notes.append)
    assert (Path(str(file)).name, keywords, notes) == (TRUNK_NAME, {"head": "mine.gguf"}, [])
    assert HEAD_NAME not in {answer.path for answer in hub.sent}
    assert brought("file.gguf", {"n_ctx": 5}) == ("file.gguf", {"n_ctx": 5})


def test_a_head_comes_for_an_adapter_that_may_change_it(hub: Hub, notes: list[str]) -> None:
    hub.files |= {TRUNK_NAME: bare(), HEAD_NAME: head()}
    _, keywords = brought("hf:owner/name", {"draft_tokens": 0, "lora": (("a.gguf", 1.0),)}, notes.append)
    assert Path(keywords["head"]).name == HEAD_NAME


def test_a_head_in_parts_comes_whole(hub: Hub, both: Both) -> None:
    parts = [f"mtp-m-Q8_0-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    hub.files[TRUNK_NAME] = bare()
    hub.files |= dict(
        zip(parts, [head(tensors=["token_embd.weight"]), head(head=False, tensors=[]), head(tensors=HEAD)], strict=True)
    )
    found = both().head
    assert found is not None
    assert found.name == parts[0]
    assert [found.with_name(part).read_bytes() for part in parts] == [hub.files[part] for part in parts]
