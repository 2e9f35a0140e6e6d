"""Claims about which file is meant: quantizations, names, patterns, splits, and heads before the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.contents import HEAD, MODEL, Contents
from pymtp.hub.files import HubFile, HubModel, models
from pymtp.hub.names import HubName, read_name, would_be
from pymtp.hub.select import PREFERRED, choose


def contents(kind: str, *, has_head: bool = False) -> Contents:
    return Contents(kind, "qwen35", 5120, has_head, has_head, reduced=False)


def chosen(
    paths: Sequence[str],
    wanted: str | None,
    heads: Sequence[str] = (),
    alone: Sequence[str] = (),
    others: Mapping[str, str] | None = None,
) -> str:
    """What is chosen where some models have heads, some files are heads alone, and others are something else."""
    found = models([HubFile(path, 1) for path in paths])

    def look(model: HubModel) -> Contents:
        kind = HEAD if model.name in alone else (others or {}).get(model.name, MODEL)
        return contents(kind, has_head=model.name in heads or model.name in alone)

    return choose(found, wanted, look, "owner/name").name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:owner/name", HubName("owner/name")),
        ("owner/name:Q4_K_M", HubName("owner/name", "Q4_K_M")),
        ("hf:o.w-n_er/Qwen3.6-27B@v2:*Q4*.gguf", HubName("o.w-n_er/Qwen3.6-27B", "*Q4*.gguf", "v2")),
        ("hf:owner/name@refs/pr/1:sub/m.gguf", HubName("owner/name", "sub/m.gguf", "refs/pr/1")),
        ("hf:owner/name:Q4_K_M+Q8_0", HubName("owner/name", "Q4_K_M", None, "Q8_0")),
        ("owner/name@v2:*Q4*+mtp-a.gguf", HubName("owner/name", "*Q4*", "v2", "mtp-a.gguf")),
        ("owner/name:+Q8_0", HubName("owner/name", None, None, "Q8_0")),
        ("owner/name:a+b.gguf+Q8_0", HubName("owner/name", "a+b.gguf", None, "Q8_0")),
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
    "text", ["hf:", "hf:name", "hf:/name", "hf:owner/name:", "hf://owner/name", "hf:a/b/c", "a/b@", "hf:a/b:Q4_K_M+"]
)
def test_what_is_no_name_is_refused_with_one_that_is_right(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"it must be like (hf:owner/name|Q4_K_M)"):
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


@pytest.mark.parametrize("wanted", ["Q8_0", "*Q8_0*"])
def test_a_file_that_is_no_model_is_not_chosen_whatever_its_name(wanted: str) -> None:
    paths = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    assert chosen(paths, wanted, alone=["a-Q8_0.gguf"]) == "b-Q8_0.gguf"
    assert chosen(paths, None, others={"a-Q8_0.gguf": "an adapter"}) == "b-Q8_0.gguf"


@pytest.mark.parametrize("wanted", [None, "Q4_K_M", "*Q4_K_M*", "mtp-m-Q4_K_M.gguf"])
def test_a_model_that_is_named_as_a_head_is_chosen_where_no_other_is_meant(wanted: str | None) -> None:
    paths = ["mtp-m-Q4_K_M.gguf", "dflash-m-Q8_0.gguf", "m-imatrix.gguf"]
    others = {"dflash-m-Q8_0.gguf": "a drafter of another kind", "m-imatrix.gguf": "an importance matrix"}
    assert chosen(paths, wanted, heads=paths[:1], others=others) == paths[0]
    assert chosen(["m-Q4_K_M.gguf", *paths], wanted if wanted != paths[0] else None, paths[:1]) == "m-Q4_K_M.gguf"


def test_what_is_no_model_is_told_beside_the_models_that_there_are() -> None:
    paths = ["m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf", "mmproj-F16.gguf"]
    for wanted in ("Q8_0", "mtp-m-Q8_0.gguf", "*mtp*"):
        with pytest.raises(
            ModelLoadError, match=r"mtp-m-Q8_0.gguf is a multi-token.*without its model; .*: m-Q4_K_M.gguf"
        ):
            chosen(paths, wanted, alone=["mtp-m-Q8_0.gguf"])
    with pytest.raises(ModelLoadError, match=r"mmproj-F16.gguf is an image projector; models by their names: m-Q4_K_M"):
        chosen(paths, "mmproj-F16.gguf", others={"mmproj-F16.gguf": "an image projector"})
    with pytest.raises(ModelLoadError, match=r"has no GGUF model: mtp-m-Q8_0.gguf is a multi.*a head is given beside"):
        chosen(paths[1:2], None, alone=["mtp-m-Q8_0.gguf"])


def test_a_whole_path_means_one_file() -> None:
    assert chosen(["m-Q8_0.gguf", "sub/m-Q8_0.gguf"], "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert chosen(["m-Q8_0.gguf", "sub/m-Q8_0.gguf"], "sub/m-Q8_0.gguf") == "sub/m-Q8_0.gguf"


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

    def look(model: HubModel) -> Contents:
        looked.append(model.name)
        return contents(MODEL)

    choose(found, None, look, "owner/name")
    choose(found, "Q8_0", look, "owner/name")
    assert set(looked) == {f"m-{PREFERRED[0]}.gguf", "m-Q8_0.gguf"}
