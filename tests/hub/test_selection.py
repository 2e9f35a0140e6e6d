"""Tests of the selection of a model: by quantization, filename or pattern, with heads first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.files import HubFile, HubModel, group_models
from pymtp.hub.gguf_contents import HEAD, MODEL, GgufContents
from pymtp.hub.names import HubName, hub_name_hint, read_name
from pymtp.hub.selection import PREFERRED, choose_model


def contents(kind: str, *, has_head: bool = False) -> GgufContents:
    return GgufContents(kind, "qwen35", 5120, has_head, has_head, reduced=False)


def choose(
    paths: Sequence[str],
    wanted: str | None,
    heads: Sequence[str] = (),
    alone: Sequence[str] = (),
    others: Mapping[str, str] | None = None,
) -> str:
    """Return the name of the model that is chosen from `paths`.

    heads: files that contain a model and its head.
    alone: files that contain only a head.
    others: files of other kinds, each with the name of its kind.
    """
    found = group_models([HubFile(path, 1) for path in paths])

    def inspect(model: HubModel) -> GgufContents:
        kind = HEAD if model.name in alone else (others or {}).get(model.name, MODEL)
        return contents(kind, has_head=model.name in heads or model.name in alone)

    return choose_model(found, wanted, inspect, "owner/name").name


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
def test_hub_name_is_parsed(text: str, name: HubName) -> None:
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
def test_hub_name_hint_suggests_a_name_for_a_text_or_url(
    text: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert hub_name_hint(text) == f"; a model of the hub is {meant}"


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
def test_hub_name_hint_is_empty_for_other_texts(text: str) -> None:
    assert hub_name_hint(text) == ""


@pytest.mark.parametrize(
    "text", ["hf:", "hf:name", "hf:/name", "hf:owner/name:", "hf://owner/name", "hf:a/b/c", "a/b@", "hf:a/b:Q4_K_M+"]
)
def test_invalid_hub_name_is_refused_with_an_example(text: str) -> None:
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
def test_selection_finds_the_file_of_a_quantization_filename_or_pattern(wanted: str, name: str) -> None:
    paths = ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m_Q4_0.gguf", "m-IQ4_0.gguf", "sub/m.IQ4_XS.gguf", "m-BF16.gguf"]
    assert choose([*paths, "m-F16.gguf", "mmproj-F16.gguf", "README.md"], wanted) == name


def test_selection_without_a_quantization_takes_the_first_preferred_one() -> None:
    paths = [f"m-{tag}.gguf" for tag in PREFERRED]
    for i, path in enumerate(paths):
        assert choose(sorted(paths[i:]), None) == path


def test_selection_without_a_quantization_takes_the_only_file_of_any_name() -> None:
    assert choose(["model.gguf", "mmproj-model.gguf", "imatrix.gguf"], None) == "model.gguf"


@pytest.mark.parametrize("wanted", [None, "Q4_K_M", "*Q4_K_M*"])
def test_selection_prefers_the_file_with_a_head(wanted: str | None) -> None:
    paths = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q4_K_M.gguf"]
    assert choose(paths, wanted, heads=["b-Q4_K_M.gguf"]) == "b-Q4_K_M.gguf"


@pytest.mark.parametrize("wanted", ["Q8_0", "*Q8_0*"])
def test_selection_skips_a_file_whose_contents_are_not_a_model(wanted: str) -> None:
    paths = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    assert choose(paths, wanted, alone=["a-Q8_0.gguf"]) == "b-Q8_0.gguf"
    assert choose(paths, None, others={"a-Q8_0.gguf": "an adapter"}) == "b-Q8_0.gguf"


@pytest.mark.parametrize("wanted", [None, "Q4_K_M", "*Q4_K_M*", "mtp-m-Q4_K_M.gguf"])
def test_selection_takes_a_model_with_a_head_name_if_no_other_matches(wanted: str | None) -> None:
    paths = ["mtp-m-Q4_K_M.gguf", "dflash-m-Q8_0.gguf", "m-imatrix.gguf"]
    others = {"dflash-m-Q8_0.gguf": "a drafter of another kind", "m-imatrix.gguf": "an importance matrix"}
    assert choose(paths, wanted, heads=paths[:1], others=others) == paths[0]
    assert choose(["m-Q4_K_M.gguf", *paths], wanted if wanted != paths[0] else None, paths[:1]) == "m-Q4_K_M.gguf"


def test_selection_error_names_the_kind_of_file_and_the_models() -> None:
    paths = ["m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf", "mmproj-F16.gguf"]
    for wanted in ("Q8_0", "mtp-m-Q8_0.gguf", "*mtp*"):
        with pytest.raises(
            ModelLoadError, match=r"mtp-m-Q8_0.gguf is a multi-token.*without its model; .*: m-Q4_K_M.gguf"
        ):
            choose(paths, wanted, alone=["mtp-m-Q8_0.gguf"])
    with pytest.raises(ModelLoadError, match=r"mmproj-F16.gguf is an image projector; models by their names: m-Q4_K_M"):
        choose(paths, "mmproj-F16.gguf", others={"mmproj-F16.gguf": "an image projector"})
    with pytest.raises(ModelLoadError, match=r"has no GGUF model: mtp-m-Q8_0.gguf is a multi.*a head is not a model"):
        choose(paths[1:2], None, alone=["mtp-m-Q8_0.gguf"])


def test_full_path_selects_only_that_file() -> None:
    assert choose(["m-Q8_0.gguf", "sub/m-Q8_0.gguf"], "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert choose(["m-Q8_0.gguf", "sub/m-Q8_0.gguf"], "sub/m-Q8_0.gguf") == "sub/m-Q8_0.gguf"


def test_selection_prefers_a_model_with_a_head_to_a_better_quantization() -> None:
    assert choose(["m-Q4_K_M.gguf", "m-MTP-Q8_0.gguf"], None, heads=["m-MTP-Q8_0.gguf"]) == "m-MTP-Q8_0.gguf"
    assert choose(["m-Q4_K_M.gguf", "m-MTP-Q8_0.gguf"], None) == "m-Q4_K_M.gguf"


def test_selection_error_lists_several_equal_matches() -> None:
    with pytest.raises(InvalidRequestError, match=r"for 'Q4_K_M' there are 2 models, name one of them: a-.*, b-"):
        choose(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "Q4_K_M")


def test_selection_error_lists_the_files_if_nothing_matches() -> None:
    with pytest.raises(ModelLoadError, match=r"owner/name has no GGUF file for '\*Q9\*'; there are: a.gguf, b.gguf"):
        choose(["a.gguf", "b.gguf", "c.bin"], "*Q9*")
    with pytest.raises(ModelLoadError, match=r"n19.gguf and 5 more"):
        choose([f"n{i:02}.gguf" for i in range(25)], "Q9")
    with pytest.raises(ModelLoadError, match="there are: none"):
        choose(["c.bin"], "Q9")
    with pytest.raises(ModelLoadError, match="has no GGUF model"):
        choose(["c.bin"], None)


def test_selection_groups_the_parts_of_a_split_file() -> None:
    paths = [f"Q4_K_M/m-{i:05}-of-00012.gguf" for i in range(1, 13)]
    (model,) = group_models([HubFile(path, 1) for path in reversed(paths)])
    assert [part.path for part in model.parts] == paths
    model.check_complete("owner/name")
    for wanted in (None, "Q4_K_M", "*Q4_K_M*.gguf", paths[0], paths[3]):
        assert choose(paths, wanted) == paths[0]


def test_selection_inspects_few_files() -> None:
    found = group_models([HubFile(f"m-{tag}.gguf", 1) for tag in PREFERRED])
    looked: list[str] = []

    def inspect(model: HubModel) -> GgufContents:
        looked.append(model.name)
        return contents(MODEL)

    choose_model(found, None, inspect, "owner/name")
    choose_model(found, "Q8_0", inspect, "owner/name")
    assert set(looked) == {f"m-{PREFERRED[0]}.gguf", "m-Q8_0.gguf"}
