"""Tests of LLMOptions: made and checked once, and passed on unchanged."""

from __future__ import annotations

import inspect
import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymtp import LLM, AsyncLLM, InvalidRequestError, Model
from pymtp.cli.load import LoadOptions
from pymtp.context.context import Context
from pymtp.context.memory import plan_memory
from pymtp.context.options import ContextOptions
from pymtp.load import load
from pymtp.model.options import ModelOptions
from pymtp.options import LLMOptions
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ServerSettings

SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "draft_tokens": 1}


@pytest.mark.parametrize("way", ["LLM", "AsyncLLM", "load"])
def test_options_are_made_and_checked_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    for kind in (ModelOptions, ContextOptions):

        def check(self: Any, name: str = kind.__name__, original: Any = kind.__post_init__) -> None:
            checked.append(name)
            original(self)

        monkeypatch.setattr(kind, "__post_init__", check)
    if way == "AsyncLLM":
        AsyncLLM(**SMALL).llm.close()
    else:
        (LLM(**SMALL) if way == "LLM" else load(LLMOptions(**SMALL))).close()
    assert sorted(checked) == ["ContextOptions", "ModelOptions"]


def test_llm_loads_with_the_given_options() -> None:
    options = LLMOptions(use_mmap=False, rope_freq_base=5000, cache_prompt=False, **SMALL)
    with LLM.from_options(options) as llm:
        assert llm.model.options is llm.context.options is options


def test_each_option_belongs_to_one_class() -> None:
    own = [set(vars(kind)["__annotations__"]) for kind in (*LLMOptions.__mro__[:-1],)]
    assert sum(map(len, own)) == len(fields(LLMOptions)) + 2  # an LLM has other defaults of two of them
    assert own[0] & own[2] == {"draft_tokens", "draft_text"}


def test_constructor_shows_all_options_as_keywords() -> None:
    parameters = inspect.signature(LLM).parameters
    assert list(parameters) == [field.name for field in fields(LLMOptions) if field.init and not field.kw_only] + [
        field.name for field in fields(LLMOptions) if field.kw_only
    ]
    assert (parameters["n_ctx"].default, parameters["draft_tokens"].default) == (8192, "auto")
    assert parameters["n_ctx"].kind is inspect.Parameter.KEYWORD_ONLY


def test_command_line_uses_the_names_of_the_options() -> None:
    spelled = {field.name for field in fields(LoadOptions)}
    assert spelled - {field.name for field in fields(LLMOptions)} == {"cache_type", "lora_scaled", "mmproj_auto"}


@pytest.mark.parametrize(
    ("other", "value", "least"), [("draft_text", 31, 32), ("draft_tokens", 7, 8), ("n_seq_max", 9, 9)]
)
@pytest.mark.parametrize("name", ["n_batch", "n_ubatch"])
def test_batch_too_small_for_another_option_is_refused_with_that_option(
    name: str, other: str, value: int, least: int
) -> None:
    given: dict[str, Any] = {name: least - 1, other: value}
    with pytest.raises(InvalidRequestError, match=f"^{name}={least - 1} must be {least} or more with {other}={value}$"):
        LLMOptions(**given)
    LLMOptions(**given | {name: least})


def test_options_reach_another_process_unchanged(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    options = LLMOptions(
        Path("m.gguf"),
        n_ctx=np.int64(512),  # type: ignore[arg-type]
        override_tensor={"ffn": "CPU"},
        tensor_split=iter([3, 1]),  # type: ignore[arg-type]
        lora={"a.gguf": 0.5},
        yarn_orig_ctx=7,
        chat_template=template,
        chat_template_kwargs={"enable_thinking": False},
    )
    template.unlink()  # another machine may not have the file
    settings = ServerSettings(api_keys=["key"], effort_budgets={"low": 3}, sampling={"top_k": 4})  # type: ignore[arg-type]
    config = WorkerConfig(settings, options, tmp_path / "prefix")
    assert WorkerConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_options_of_another_machine_are_checked_without_its_devices_and_files() -> None:
    options = LLMOptions(override_tensor="ffn=CUDA77", lora="nowhere.gguf")
    with pytest.raises(InvalidRequestError, match="no buffer type CUDA77 here"):
        options.check_machine()
    with pytest.raises(InvalidRequestError, match="is no regular expression"):
        LLMOptions(override_tensor="(=CUDA77")


def test_keywords_beside_an_options_object_are_refused_and_not_dropped() -> None:
    with pytest.raises(TypeError, match=r"Model\(\) got options and the keyword argument 'use_mmap'"):
        Model(options=ModelOptions(), use_mmap=False)
    with Model() as model:
        with pytest.raises(TypeError, match=r"Context\(\) got options and the keyword argument 'n_ctx'"):
            Context(model, ContextOptions(), n_ctx=256)
        with pytest.raises(TypeError, match=r"plan_memory\(\) got options and the keyword argument 'n_ctx'"):
            plan_memory(model, ContextOptions(), n_ctx=256)


def test_costs_of_rounds_are_those_of_a_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for n in (1, 2):
        monkeypatch.setattr("pymtp.context.options.default_threads", lambda n=n: n)
        keys.append(LLMOptions().timing_key(drafts=7))
    assert keys[0] != keys[1] == LLMOptions(n_threads=2).timing_key(drafts=7)


@pytest.mark.parametrize(
    ("options", "mtp", "drafts"),
    [
        ({}, True, 7),
        ({}, False, 0),
        ({"n_ubatch": 4}, True, 3),
        ({"n_batch": 1, "n_ubatch": 1}, True, 0),
        ({"draft_tokens": 12}, True, 12),
    ],
    ids=str,
)
def test_auto_drafts_as_many_as_a_ubatch_holds(options: dict[str, Any], mtp: bool, drafts: int) -> None:
    assert LLMOptions(**options).max_drafts(mtp=mtp) == drafts


def test_load_notes_a_missing_head_once(headless: Path) -> None:
    notes: list[str] = []
    for drafts in ("auto", 0):
        load(LLMOptions(headless, **SMALL | {"draft_tokens": drafts}), notify=notes.append).close()
    (note,) = notes
    assert "has no multi-token-prediction head: it is decoded without a head's drafts" in note
