"""Tests of model downloads and of from_pretrained, with a hub on loopback: the right file, or a helpful error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.hub import COMMIT, Hub, gguf
from huggingface_hub import constants
from makers.make_model import make_model

from pymtp import LLM, AsyncLLM, Model
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.model_download import download_model
from pymtp.hub.names import HubName

Fetch = Callable[..., Path]
NAME = "model-Q4_K_M.gguf"


def test_download_fetches_only_the_file_with_a_head(hub: Hub, fetch: Fetch, notes: list[str]) -> None:
    hub.files |= {"a-Q4_K_M.gguf": gguf(head=False), "b-Q4_K_M.gguf": gguf(), "b-Q8_0.gguf": gguf()}
    assert fetch().name == "b-Q4_K_M.gguf"
    assert notes == []
    whole = {answer.path for answer in hub.sent if answer.asked_to == len(hub.files[answer.path])}
    assert "b-Q4_K_M.gguf" in whole
    assert "b-Q8_0.gguf" not in {answer.path for answer in hub.sent}


def test_download_notes_a_missing_head(hub: Hub, fetch: Fetch, notes: list[str]) -> None:
    hub.files[NAME] = gguf(head=False)
    assert fetch("Q4_K_M").name == NAME
    (note,) = notes
    assert note == f"{NAME} of owner/name has no multi-token-prediction head: it is decoded without a head's drafts"


def test_unsupported_architecture_is_refused_before_the_download(
    hub: Hub, fetch: Fetch, demo: Path, tmp_path: Path
) -> None:
    hub.files[NAME] = gguf(architecture="llama")
    runs = "pymtp runs qwen35, qwen35moe and qwen3next"
    with pytest.raises(ModelLoadError, match=f"architecture is 'llama', {runs}"):
        fetch()
    assert all(answer.asked_to < len(hub.files[NAME]) for answer in hub.sent)
    other = tmp_path / "other.gguf"
    other.write_bytes(demo.read_bytes().replace(b"qwen35", b"qwen99"))
    with pytest.raises(ModelLoadError, match=runs):
        Model(other)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html>an error</html>", "its first bytes are not GGUF"),
        (b"GGUF\1\0\0\0" + bytes(100), "version 1 of the format is not known"),
        (b"GGUF\3\0\0\0", "it ends within its header"),
        (gguf(head=False)[:5000], "it ends within its header"),
    ],
)
def test_damaged_gguf_is_refused(hub: Hub, fetch: Fetch, data: bytes, why: str) -> None:
    hub.files[NAME] = data
    with pytest.raises(ModelLoadError, match=f"{NAME} of owner/name is not a GGUF file, or it is damaged: {why}"):
        fetch()


def test_download_fetches_all_parts_of_a_split_file(hub: Hub, fetch: Fetch) -> None:
    parts = [f"sub/m-Q4_K_M-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    hub.files |= {part: gguf() + part.encode() for part in parts} | {"m-Q8_0.gguf": gguf()}
    first = fetch("*Q4_K_M*.gguf")
    assert first.name == "m-Q4_K_M-00001-of-00003.gguf"
    assert [(first.parents[1] / part).read_bytes() for part in parts] == [hub.files[part] for part in parts]


def test_incomplete_split_file_is_refused(hub: Hub, fetch: Fetch) -> None:
    hub.files |= {f"m-{i:05}-of-00003.gguf": gguf() for i in (1, 3)}
    with pytest.raises(ModelLoadError, match=r"owner/name has 2 of the 3 parts of m-00001-of-00003.gguf"):
        fetch()


def test_revision_is_downloaded_and_found_in_the_cache_offline(
    hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = gguf()
    path = fetch(revision="v2")
    assert COMMIT in path.parts
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(revision="v2") == fetch(revision=COMMIT) == path
    with pytest.raises(ModelLoadError, match="the cache has nothing of owner/name"):
        fetch()


def test_offline_mode_uses_the_cache_without_requests(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {NAME: gguf(), "model-Q8_0.gguf": gguf()}
    path = fetch()
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == fetch("Q4_K_M") == path
    with pytest.raises(ModelLoadError, match=rf"the cache of owner/name has no GGUF file for 'Q8_0'.*{NAME}"):
        fetch("Q8_0")
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE is set, and the cache has nothing of owner/other"):
        download_model(HubName("owner/other"))
    assert hub.asked == []


@pytest.mark.parametrize("endpoint", ["", "hf-mirror.com"])
def test_offline_mode_ignores_the_endpoint(
    hub: Hub, fetch: Fetch, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = gguf()
    path = fetch()
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(InvalidRequestError, match="HF_ENDPOINT must be like"):
        fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == path


def test_offline_mode_refuses_an_incomplete_split_file(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {f"m-{i:05}-of-00002.gguf": gguf() for i in (1, 2)}
    path = fetch()
    path.with_name("m-00002-of-00002.gguf").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="has 1 of the 2 parts"):
        fetch()


@pytest.mark.parametrize("how", ["down", "nobody there"])
def test_cache_is_used_if_the_hub_is_unreachable(
    hub: Hub, fetch: Fetch, notes: list[str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = gguf()
    path = fetch()
    hub.faults.down = how == "down"
    if not hub.faults.down:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch() == path
    (note,) = notes
    assert note.endswith("; the cached model is used")
    problem = "answers 503 for" if hub.faults.down else r"cannot reach http://127.0.0.1:1 for"
    with pytest.raises(ModelLoadError, match=f"{problem} owner/name: .*; the cache has nothing of owner/name at v2"):
        fetch(revision="v2")


def test_unknown_repository_is_an_error(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=f"no repository owner/nmae on {hub.url}, or it is private"):
        download_model(HubName("owner/nmae"))
    with pytest.raises(InvalidRequestError, match="'owner/na--me' is not the name of a repository"):
        download_model(HubName("owner/na--me"))


def test_unknown_revision_is_an_error(fetch: Fetch) -> None:
    with pytest.raises(ModelLoadError, match="owner/name has no revision 'v9'"):
        fetch(revision="v9")


@pytest.mark.parametrize("given", [None, "another"])
def test_gated_repository_error_says_where_to_ask_for_access(
    hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    hub.files[NAME] = gguf()
    hub.gated, hub.token = True, "right"
    with pytest.raises(ModelLoadError, match=f"owner/name is gated: ask for access at {hub.url}/owner/name, then"):
        fetch(token=given)
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch().read_bytes() == hub.files[NAME]


def test_private_repository_needs_the_right_token(hub: Hub, fetch: Fetch) -> None:
    hub.files[NAME] = gguf()
    hub.token = "right"
    with pytest.raises(ModelLoadError, match=r"no repository owner/name .*, or it is private"):
        fetch()
    with pytest.raises(ModelLoadError, match=r"refuses owner/name .401.: the token"):
        fetch(token="wrong")
    assert fetch(token="right").read_bytes() == hub.files[NAME]


def test_missing_huggingface_hub_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymtp.hub.errors.find_spec", lambda name: None)
    with pytest.raises(InvalidRequestError, match="pip install huggingface-hub"):
        download_model(HubName("owner/name"))


def test_from_pretrained_loads_the_model(hub: Hub, demo: Path) -> None:
    hub.files |= {NAME: demo.read_bytes(), "model-Q8_0.gguf": demo.read_bytes()}
    keywords = {"n_ctx": 256, "n_threads": 1, "draft_tokens": 1}
    with LLM.from_pretrained("owner/name", "*Q4_K_M*.gguf", **keywords) as llm:
        assert (llm.model.path.name, llm.model.has_head) == (NAME, True)
        assert llm.generate("def").token_ids
    llm = AsyncLLM.from_pretrained("owner/name:Q8_0", **keywords)
    assert llm.llm.model.path.name == "model-Q8_0.gguf"
    llm._close()


def test_from_pretrained_warns_without_a_head(hub: Hub, headless: Path) -> None:
    hub.files[NAME] = headless.read_bytes()
    with pytest.warns(UserWarning, match="has no multi-token-prediction head"):
        LLM.from_pretrained("owner/name", n_ctx=256, n_threads=1).close()


def test_from_pretrained_loads_a_split_model(hub: Hub, tmp_path: Path) -> None:
    parts = make_model("tiny", tmp_path / "tiny-F32.gguf", weight_type="f32", split_max_tensors=40)
    assert len(parts) > 1
    hub.files |= {path.name: path.read_bytes() for path in parts}
    with LLM.from_pretrained("owner/name", n_ctx=256, n_threads=1, draft_tokens=1) as llm:
        assert llm.generate("def").token_ids


@pytest.mark.parametrize("base", [LLM, AsyncLLM])
def test_from_pretrained_calls_the_constructor_of_a_subclass(hub: Hub, demo: Path, base: type[Any]) -> None:
    class Named(base):  # type: ignore[misc]
        def __init__(self, model: Any = None, *, name: str = "", **keywords: Any) -> None:
            self.name = name
            super().__init__(model, **keywords)

    hub.files[NAME] = demo.read_bytes()
    made = Named.from_pretrained("owner/name", name="a", n_ctx=256, n_threads=1, draft_tokens=0)
    llm = made if base is LLM else made.llm
    assert (made.name, llm.model.path.name, llm.context.n_ctx) == ("a", NAME, 256)
    llm.close()


@pytest.mark.parametrize("make", [LLM, AsyncLLM])
@pytest.mark.parametrize("wrong", ["n_ctxx", "n_cpu_mo", "model", "placing"])
def test_from_pretrained_refuses_an_unknown_keyword_before_the_download(
    hub: Hub, make: type[LLM | AsyncLLM], wrong: str
) -> None:
    with pytest.raises(TypeError, match=f"from_pretrained\\(\\) got an unexpected keyword argument '{wrong}'"):
        make.from_pretrained("owner/name", **{wrong: 256})
    assert hub.asked == []


@pytest.mark.parametrize("make", [LLM, AsyncLLM])
@pytest.mark.parametrize(
    ("names", "keywords", "why"),
    [
        ((None,), {}, "None is not the name"),
        ((5,), {}, "5 is not the name"),
        (("owner/name", 5), {}, "filename=5 must be"),
        (("owner/name",), {"revision": 5}, "revision=5 must be"),
        (("owner/name",), {"cache_dir": 5}, "cache_dir=5 must be"),
        (("owner/name",), {"token": 5}, "token must be"),
        (("owner/name:Q4_K_M", "Q8_0"), {}, "asks for Q4_K_M: give one"),
        (("owner/name@v2",), {"revision": "main"}, "asks for v2: give one"),
        (("owner/name",), {"n_cpu_moe": -1}, "n_cpu_moe=-1 must be"),
        (("owner/name",), {"rope_scaling": "foo"}, "rope_scaling='foo' is not known"),
        (("owner/name",), {"n_ctx": -1}, "n_ctx=-1 must be"),
        (("owner/name",), {"n_ctx": None}, "n_ctx=None must be"),
        (("owner/name",), {"n_threads": 0}, "n_threads=0 must be"),
        (("owner/name",), {"draft_tokens": -1}, "draft_tokens=-1 must be"),
        (("owner/name",), {"draft_tokens": "many"}, "draft_tokens='many' must be"),
        (("owner/name",), {"draft_tokens": 7, "n_ubatch": 4}, "n_ubatch=4 must be 8 or more with draft_tokens=7"),
        (("owner/name",), {"type_k": "foo"}, "type_k='foo' is not known"),
        (("owner/name",), {"flash_attn": "off", "type_v": "q8_0"}, "needs flash attention"),
        (("owner/name",), {"prefill": "slow"}, "prefill='slow' is not known"),
        (("owner/name",), {"offload_kqv": 1}, "offload_kqv=1 must be"),
        (("owner/name",), {"cache_bytes": -1}, "cache_bytes=-1 must be"),
        (("owner/name",), {"cache_prompt": "off"}, "cache_prompt='off' must be"),
        (
            ("owner/name",),
            {"draft_tokens": 3, "prefill": "all-outputs", "tap": "pre_norm"},
            'post-norm embeddings: it cannot be used with tap="pre_norm"',
        ),
        (("owner/name",), {"n_ctx": 2**30, "n_seq_max": 4}, "more than 2147483392 in all"),
        (("owner/name",), {"n_ctx": 2**24 + 1}, "n_ctx=16777217 must be at most 16777216"),
    ],
    ids=str,
)
def test_from_pretrained_refuses_invalid_values_before_the_download(
    hub: Hub, make: type[LLM | AsyncLLM], names: Any, keywords: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        make.from_pretrained(*names, **keywords)
    assert hub.asked == []


def test_from_pretrained_checks_adapters_before_the_download(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=r"no such adapter: nowhere\.gguf"):
        LLM.from_pretrained("owner/name", lora="nowhere.gguf")
    assert hub.asked == []


def test_from_pretrained_accepts_iterators_as_options(hub: Hub, demo: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    with LLM.from_pretrained("owner/name", n_ctx=64, n_threads=1, tensor_split=iter([3, 1])) as llm:
        assert llm.model.options.tensor_split == (3, 1)


def test_from_pretrained_accepts_equal_values_in_the_name_and_in_an_argument(hub: Hub, demo: Path) -> None:
    hub.files["model-Q8_0.gguf"] = demo.read_bytes()
    keywords: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "n_gpu_layers": None}
    LLM.from_pretrained("owner/name@main:Q8_0", "Q8_0", revision="main", **keywords).close()


def test_from_pretrained_takes_all_keywords_of_an_llm(hub: Hub, demo: Path) -> None:
    hub.files[NAME] = demo.read_bytes()
    keywords: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "use_mmap": False, "rope_freq_base": 10_000.0}
    LLM.from_pretrained("owner/name", **keywords).close()
