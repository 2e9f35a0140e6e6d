"""Claims about which file is meant: quantizations, names, patterns, splits, and heads before the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.choose import PREFERRED, choose
from pymtp.hub.files import HubFile, models
from pymtp.hub.names import HubName, read_name, would_be


def chosen(paths: Sequence[str], wanted: str | None, heads: Sequence[str] = ()) -> str:
    found = models([HubFile(path, 1) for path in paths])
    return choose(found, wanted, lambda model: model.name in heads, "owner/name").name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:owner/name", HubName("owner/name")),
        ("owner/name:Q4_K_M", HubName("owner/name", "Q4_K_M")),
        ("hf:o.w-n_er/Qwen3.6-27B@v2:*Q4*.gguf", HubName("o.w-n_er/Qwen3.6-27B", "*Q4*.gguf", "v2")),
        ("hf:owner/name@refs/pr/1:sub/m.gguf", HubName("owner/name", "sub/m.gguf", "refs/pr/1")),
    ],
)
def test_a_name_is_read(text: str, name: HubName) -> None:
    assert read_name(text) == name


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("owner/name", "hf:owner/name"),
        ("HF:owner/name:Q4_K_M", "hf:owner/name:Q4_K_M"),
        ("https://huggingface.co/owner/name", "hf:owner/name"),
        ("https://huggingface.co/owner/name/tree/main", "hf:owner/name"),
        ("https://huggingface.co/owner/name/blob/main/sub/m.gguf", "hf:owner/name:sub/m.gguf"),
        ("https://hf.co/owner/name/resolve/v2/m.gguf?download=true", "hf:owner/name@v2:m.gguf"),
        ("https://huggingface.co/owner/name/resolve/refs%2Fpr%2F1/a%20b.gguf", "hf:owner/name@refs/pr/1:a b.gguf"),
        ("https://huggingface.co/owner/name/blob/feature%2Fx/m.gguf", "hf:owner/name@feature/x:m.gguf"),
        ("https://hub.example/owner/name", "hf:owner/name"),
        ("hf.co/owner/name", "hf:owner/name"),
        ("HF.co/owner/name:Q4_K_M", "hf:owner/name:Q4_K_M"),
    ],
)
def test_a_name_or_an_address_that_is_no_file_may_have_meant_a_model_of_the_hub(
    text: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert would_be(text) == f"; a model of the hub is {meant}"


@pytest.mark.parametrize(
    "text",
    [
        *("m.gguf", "models/m.gguf", "a/b/c", "HF:", "://", "https://[a/b/c", ""),
        *(
            "https://huggingface.co/owner/name/blob/v%3A1/m.gguf",
            "https://huggingface.co/owner/name/blob/main/%1b[31m.gguf",
            "https://huggingface.co/docs/hub",
            "https://huggingface.co",
            "https://example.com/files/m.gguf",
            "http://localhost:8080/v1/models",
        ),
    ],
)
def test_what_is_no_name_of_the_hub_is_not_taken_for_one(text: str) -> None:
    assert would_be(text) == ""


@pytest.mark.parametrize(
    "text", ["hf:", "hf:name", "hf:/name", "hf:owner/name:", "hf://owner/name", "hf:a/b/c", "a/b@"]
)
def test_what_is_no_name_is_refused_with_one_that_is_right(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="it must be like hf:owner/name"):
        read_name(text)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q4_K", "m-Q4_K.gguf"),
        ("Q4_0", "m_Q4_0.gguf"),
        ("IQ4_XS", "sub/m.IQ4_XS.gguf"),
        ("F16", "m-F16.gguf"),
        ("*q4_k_m*", "m-Q4_K_M.gguf"),
        ("sub/*", "sub/m.IQ4_XS.gguf"),
        ("m.IQ4_XS.gguf", "sub/m.IQ4_XS.gguf"),
        ("mmproj-F16.gguf", "mmproj-F16.gguf"),
    ],
)
def test_a_quantization_a_file_or_a_pattern_finds_its_file(wanted: str, name: str) -> None:
    paths = ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m_Q4_0.gguf", "m-IQ4_0.gguf", "sub/m.IQ4_XS.gguf", "m-BF16.gguf"]
    assert chosen([*paths, "m-F16.gguf", "mmproj-F16.gguf", "README.md"], wanted) == name


def test_without_a_quantization_the_first_preferred_one_is_taken() -> None:
    paths = [f"m-{tag}.gguf" for tag in PREFERRED]
    for i, path in enumerate(paths):
        assert chosen(sorted(paths[i:]), None) == path


def test_without_a_quantization_a_file_of_any_name_is_taken_where_it_is_the_only_one() -> None:
    assert chosen(["model.gguf", "mmproj-model.gguf", "imatrix.gguf"], None) == "model.gguf"


@pytest.mark.parametrize("wanted", [None, "Q4_K_M", "*Q4_K_M*"])
def test_the_file_with_a_head_comes_first(wanted: str | None) -> None:
    paths = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q4_K_M.gguf"]
    assert chosen(paths, wanted, heads=["b-Q4_K_M.gguf"]) == "b-Q4_K_M.gguf"


def test_without_a_quantization_a_head_counts_more_than_the_quantization() -> None:
    assert chosen(["m-Q4_K_M.gguf", "m-MTP-Q8_0.gguf"], None, heads=["m-MTP-Q8_0.gguf"]) == "m-MTP-Q8_0.gguf"
    assert chosen(["m-Q4_K_M.gguf", "m-MTP-Q8_0.gguf"], None) == "m-Q4_K_M.gguf"


def test_several_that_are_equal_are_listed() -> None:
    with pytest.raises(InvalidRequestError, match=r"for 'Q4_K_M' there are 2 models, name one of them: a-.*, b-"):
        chosen(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "Q4_K_M")


def test_a_pattern_without_a_match_lists_what_there_is() -> None:
    with pytest.raises(ModelLoadError, match=r"owner/name has no GGUF file for '\*Q9\*'; there are: a.gguf, b.gguf"):
        chosen(["a.gguf", "b.gguf", "c.bin"], "*Q9*")
    with pytest.raises(ModelLoadError, match=r"n19.gguf and 5 more"):
        chosen([f"n{i:02}.gguf" for i in range(25)], "Q9")
    with pytest.raises(ModelLoadError, match="there are: none"):
        chosen(["c.bin"], "Q9")
    with pytest.raises(ModelLoadError, match="has no GGUF model"):
        chosen(["c.bin"], None)


def test_the_parts_of_a_split_file_are_one_model() -> None:
    paths = [f"Q4_K_M/m-{i:05}-of-00012.gguf" for i in range(1, 13)]
    (model,) = models([HubFile(path, 1) for path in reversed(paths)])
    assert [part.path for part in model.parts] == paths
    model.check_whole("owner/name")
    for wanted in (None, "Q4_K_M", "*Q4_K_M*.gguf", paths[0], paths[3]):
        assert chosen(paths, wanted) == paths[0]


def test_few_files_are_looked_into() -> None:
    found = models([HubFile(f"m-{tag}.gguf", 1) for tag in PREFERRED])
    looked: list[str] = []
    look: Callable[..., bool] = lambda model: bool(looked.append(model.name))  # noqa: E731
    choose(found, None, look, "owner/name")
    choose(found, "Q8_0", look, "owner/name")
    assert looked == [f"m-{PREFERRED[0]}.gguf"]
