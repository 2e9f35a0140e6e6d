"""Tests of odd values: each is refused with its own error, and concurrent requests are not affected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.model.rope import RopeOptions

HUGE = 10**5000  # too long for Python to print
ODD: list[Any] = [
    *(None, True, np.True_, 0, -1, 3, HUGE, 0.5, math.nan, -math.inf, complex(1, 1), np.float32(0.5), np.int8(2)),
    *("", "a", "\0", "\ud800", b"a", memoryview(b"x"), [], ["a"], [None], {}, {"a": 1}, {3: 0.5}, {"a"}),
    *(np.array(3), np.array("x"), np.array([1, 2]), np.array([]), (i for i in ()), object(), len),
]
FIELDS = [field.name for field in fields(SamplingParams)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(n_ctx=256, n_seq_max=2, n_threads=1, draft_tokens=1) as llm:
        yield llm


@pytest.mark.parametrize("name", FIELDS)
def test_odd_params_are_refused_or_do_not_affect_a_concurrent_request(llm: LLM, name: str) -> None:
    plain = SamplingParams(max_tokens=4)
    alone = llm.generate("import ", plain).text
    refused = 0
    for value in ODD:
        try:
            odd = SamplingParams(**{"max_tokens": 4, name: value})
            beside = llm.generate(["import ", "class "], [plain, odd])
        except InvalidRequestError:
            refused += 1
        else:
            assert beside[0].text == alone
    assert 0 < refused < len(ODD)
    assert llm.generate("import ", plain).text == alone


@pytest.mark.parametrize("name", sorted(field.name for field in fields(RopeOptions)))
def test_odd_rope_numbers_are_refused_by_name(name: str) -> None:
    zero = [0] if name in ("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow") else []
    right: list[Any] = {"rope_scaling": [], "yarn_orig_ctx": [3, 2]}.get(name, [*zero, 3, 0.5, 2])
    for value in ODD[1:]:
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and value in right:
            RopeOptions(**{name: value})
        else:
            with pytest.raises(InvalidRequestError, match=name):
                RopeOptions(**{name: value})


@pytest.mark.parametrize("value", ["off", 0, 1, None, np.array([1, 2])], ids=str)
def test_cache_prompt_must_be_a_bool(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^cache_prompt=.* must be True or False"):
        LLM("no such file", cache_prompt=value)


def test_bool_keywords_may_be_numpy_bools() -> None:
    keywords: dict[str, Any] = {"cache_prompt": np.False_, "offload_kqv": np.True_, "use_mmap": np.False_}
    with LLM(n_ctx=64, n_threads=1, draft_tokens=0, **keywords) as llm:
        assert (llm._engine.cache_prompt, llm.model.options.use_mmap) == (False, False)


@pytest.mark.parametrize(
    "prompt",
    [[HUGE], [-HUGE], [[HUGE]], np.array(3), np.array("x"), {1: 2}, {1}, [{1}], [1.5]],
    ids=["huge", "-huge", "[huge]", "array", "array of text", "dict", "set", "[set]", "real"],
)
@pytest.mark.parametrize("way", ["generate", "stream", "save_prefix"])
def test_odd_prompts_are_refused(llm: LLM, prompt: Any, way: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        getattr(llm, way)(prompt, *([tmp_path / "prefix"] if way == "save_prefix" else []))


@pytest.mark.parametrize("path", [None, 3, b"x", "", "a\0b", "\ud800", [], np.array("x")], ids=repr)
def test_odd_prefix_paths_are_refused(llm: LLM, path: Any) -> None:
    for ask in (partial(llm.save_prefix, "import "), llm.load_prefix):
        with pytest.raises(InvalidRequestError, match="a prefix must be a path"):
            ask(path)


@pytest.mark.parametrize("tools", [3, "x", [3], {}, [HUGE]], ids=["3", "x", "[3]", "{}", "huge"])
def test_tools_must_be_a_list_of_mappings(llm: LLM, tools: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"tools(\[0\])? must be"):
        llm.chat([{"role": "user", "content": "Hi"}], tools=tools)


@pytest.mark.parametrize("message", [HUGE, {"role": "user", "content": HUGE}, {"x": HUGE}], ids=["it", "content", "x"])
def test_message_with_a_huge_number_is_refused(llm: LLM, message: Any) -> None:
    with pytest.raises(InvalidRequestError):
        llm.chat([message])
