"""Tests of Generate: each row of a batch gets its own text, or its own error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

from pymtp import LLM, ContextFullError, InvalidRequestError, ModelLoadError, SamplingParams
from pymtp.chat import Chat
from pymtp.hub.model_download import LocalFiles
from pymtp.hub.names import HubName
from pymtp.ray import Generate
from pymtp.ray.generate import prompt_of
from pymtp.ray.workers import assigned_cpus

PROMPTS = ["def add(a, b):", "import ", "class Tree", "x = ["]
GREEDY = SamplingParams(max_tokens=8, temperature=0)
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "door"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "def"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "open"},
]


def column(values: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.fixture(scope="module")
def generate() -> Generate:
    return Generate(params=GREEDY, errors="keep", n_ctx=256, n_threads=1, draft_tokens=1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(n_ctx=256, n_threads=1, draft_tokens=1) as llm:
        yield llm


def test_row_keeps_its_columns_and_gets_the_text_that_llm_generate_returns(generate: Generate, llm: LLM) -> None:
    done = generate({"id": np.arange(4), "prompt": np.array(PROMPTS)})
    alone = [llm.generate(prompt, GREEDY) for prompt in PROMPTS]
    assert done["id"].tolist() == [0, 1, 2, 3]
    assert done["text"].tolist() == [each.text for each in alone]
    assert done["finish_reason"].tolist() == [each.finish_reason for each in alone]
    assert done["completion_tokens"].tolist() == [len(each.token_ids) for each in alone]
    assert done["prompt_tokens"].tolist() == [len(each.prompt_token_ids) for each in alone]
    assert done["error"].tolist() == [""] * 4


def test_prompts_of_rows_can_be_token_ids_or_messages(generate: Generate, llm: LLM) -> None:
    tokens = llm.model.tokenize(PROMPTS[0])
    # as from Arrow: arrays for lists, and None for keys that only other messages have
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "door", "word": None}}}
    messages = np.array([{"tool_calls": None, **each} for each in MESSAGES], dtype=object)
    messages[1]["tool_calls"] = np.array([call])
    done = generate({"prompt": column([np.array(tokens), tokens, messages])})
    assert done["error"].tolist() == [""] * 3
    whole = llm.generate(PROMPTS[0], GREEDY).text
    assert done["text"].tolist() == [whole, whole, llm.chat(MESSAGES, GREEDY).text]
    assert prompt_of(messages) == Chat(MESSAGES)


def test_params_can_be_a_function_of_the_row(llm: LLM) -> None:
    def params(row: Any) -> SamplingParams:
        return SamplingParams(max_tokens=int(row["most"]), seed=int(row["seed"]), temperature=1)

    generate = Generate(params=params, prompt="question", output="answer", n_ctx=256, n_threads=1, draft_tokens=1)
    rows = {"question": np.array(["import "] * 3), "most": np.array([4, 5, 6]), "seed": np.array([1, 2, 3])}
    alone = [llm.generate("import ", SamplingParams(3 + seed, seed=seed, temperature=1)).text for seed in (1, 2, 3)]
    assert generate(rows)["answer"].tolist() == alone


def test_failed_row_does_not_change_the_others(generate: Generate, llm: LLM) -> None:
    done = generate({"prompt": column(["import ", "too long " * 1000, "", [10**5000], ["import ", "x"], "class Tree"])})
    fine = [llm.generate(prompt, GREEDY).text for prompt in ("import ", "class Tree")]
    assert done["text"].tolist() == [fine[0], "", "", "", "", fine[1]]
    assert [error == "" for error in done["error"]] == [True, False, False, False, False, True]
    assert "a row must have one prompt" in done["error"][4]
    assert "256" in done["error"][1]
    assert (done["completion_tokens"][1], done["finish_reason"][1]) == (0, "error")


def test_params_function_that_raises_fails_only_its_row(llm: LLM) -> None:
    def params(row: Any) -> SamplingParams:
        return {1: GREEDY}[int(row["id"])]

    rows = {"prompt": column(["import ", "class Tree"]), "id": np.array([1, 2])}
    done = Generate(params=params, errors="keep", n_ctx=256, n_threads=1, draft_tokens=1)(rows)
    assert done["text"].tolist() == [llm.generate("import ", GREEDY).text, ""]
    assert done["error"].tolist() == ["", "the function params failed for a row: KeyError: 2"]
    with pytest.raises(InvalidRequestError, match="the function params failed for a row: KeyError: 2"):
        Generate(params=params, n_ctx=256, n_threads=1, draft_tokens=1)(rows)


def test_column_of_params_can_have_nulls(llm: LLM) -> None:
    def params(row: Any) -> dict[str, Any]:
        return {"max_tokens": row["most"], "seed": row["seed"], "temperature": row["heat"]}

    rows = {
        "prompt": column(["import "] * 2),
        "most": np.array([4.0, 5.0]),
        "seed": np.array([7.0, np.nan]),
        "heat": np.array([1.0, np.nan]),
    }
    done = Generate(params=params, errors="keep", n_ctx=256, n_threads=1, draft_tokens=1)(rows)
    first = llm.generate("import ", SamplingParams(4, seed=7, temperature=1.0)).text
    assert done["text"].tolist() == [first, ""]
    assert "temperature=None" in done["error"][1]  # a null in a column of floats is None, too


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_param_that_a_float_column_cannot_store_exactly_is_refused(kind: Any) -> None:
    most = 2 ** (np.finfo(kind).nmant + 1)
    generate = Generate(params=lambda row: row, n_ctx=64, n_threads=1, draft_tokens=0)
    assert generate._params({"seed": kind(most - 1)}).seed == most - 1
    with pytest.raises(InvalidRequestError, match=f"which are exact only below {most}"):
        generate._params({"seed": kind(most)})
    assert generate._params({"frequency_penalty": kind(1e20)}).frequency_penalty == kind(1e20)


@pytest.mark.parametrize("null", [None, math.nan, np.float32(math.nan), pandas.NA], ids=repr)
def test_every_kind_of_null_in_a_column_becomes_none(null: Any) -> None:
    generate = Generate(
        params=lambda row: {"max_tokens": 3, "seed": row["seed"]}, n_ctx=64, n_threads=1, draft_tokens=0
    )
    assert generate._params({"seed": null}).seed is None


def test_error_of_a_row_is_raised_unless_errors_are_kept() -> None:
    generate = Generate(params=GREEDY, n_ctx=64, n_threads=1, draft_tokens=0)
    with pytest.raises(ContextFullError):
        generate({"prompt": np.array(["import ", "too long " * 1000])})
    assert not generate._llm.figures().running
    assert len(generate({"prompt": np.array(["import "])})["text"]) == 1  # the engine still works
    assert "error" not in generate({"prompt": np.array(["import "])})


def test_empty_batch_has_all_columns(generate: Generate) -> None:
    done = generate({"prompt": np.array([], dtype=object)})
    assert {name: len(values) for name, values in done.items()} == dict.fromkeys(
        ["prompt", "text", "finish_reason", "prompt_tokens", "completion_tokens", "error"], 0
    )


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"errors": "ignore"}, '"raise" or "keep"'),
        ({"errors": np.array(["raise", "keep"])}, '"raise" or "keep"'),
        ({"n_ctx": -1}, "n_ctx=-1 must be"),
        ({"n_cpu_moe": -1}, "n_cpu_moe=-1 must be"),
        ({"params": SamplingParams(n=2)}, "n=2"),
        ({"params": SamplingParams(logprobs=2)}, "logprobs=2 must be None"),
        ({"params": SamplingParams(prompt_logprobs=0)}, "prompt_logprobs=0 must be None"),
        ({"output": "prompt"}, "prompt"),
        ({"output": "finish_reason"}, "finish_reason"),
        ({"prompt": "error", "errors": "keep"}, "error"),
        *(({"output": each}, "output=.* must be the name of a column") for each in (None, 5, [], "")),
        *(({"prompt": each}, "prompt=.* must be the name of a column") for each in (None, ["a"], "")),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_a_model_is_loaded(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        Generate("hf:owner/name", **keywords)


def test_unknown_keywords_and_missing_adapters_are_refused_before_a_download() -> None:
    with pytest.raises(TypeError, match="n_ctxx"):
        Generate("hf:owner/name", n_ctxx=256)
    with pytest.raises(ModelLoadError, match=r"no such adapter: nowhere\.gguf"):
        Generate("hf:owner/name", lora="nowhere.gguf")


def test_error_about_a_missing_prompt_column_names_the_columns_of_the_batch(generate: Generate) -> None:
    with pytest.raises(InvalidRequestError, match="'prompt' among question, text"):
        generate({"question": np.array(["a"]), "text": np.array(["b"])})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt": np.array(["a", "b"]), "id": np.arange(3)}, "'prompt' has 2 values, 'id' has 3"),
        ({"prompt": "import "}, "'prompt' is not an array"),
        ({"prompt": {"a": 1}}, "'prompt' is not an array"),
        ({"prompt": {"a"}}, "'prompt' is not an array"),
        ({"prompt": np.array(["a"]), "id": 7}, "'id' is not an array"),
        ({3: np.arange(2), "question": np.arange(2)}, "'prompt' among 3, question"),
    ],
    ids=str,
)
def test_columns_that_are_not_arrays_of_the_same_length_are_refused(
    generate: Generate, columns: dict[Any, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        generate(columns)


def test_batch_can_be_any_mapping(generate: Generate) -> None:
    class Columns(Mapping[str, Any]):  # a mapping that lacks the operator | of a dict
        def __getitem__(self, name: str) -> Any:
            return {"prompt": np.array(["import "])}[name]

        def __iter__(self) -> Iterator[str]:
            return iter(["prompt"])

        def __len__(self) -> int:
            return 1

    done = generate(Columns())  # type: ignore[arg-type]
    assert (len(done["text"]), done["error"].tolist()) == (1, [""])


def test_batch_of_another_format_is_refused_with_a_hint(generate: Generate) -> None:
    with pytest.raises(InvalidRequestError, match='not a Table: use batch_format="numpy"'):
        generate(pa.table({"prompt": ["a"]}))  # type: ignore[arg-type]


def test_params_function_can_return_every_type_that_params_accepts(llm: LLM) -> None:
    def params(row: Any) -> Any:
        return [GREEDY, {"max_tokens": 5}, None, {"max_token": 5}, 7][int(row["which"])]

    generate = Generate(params=params, errors="keep", n_ctx=256, n_threads=1, draft_tokens=1)
    done = generate({"prompt": np.array(["import "] * 5), "which": np.arange(5)})
    alone = [llm.generate("import ", each).text for each in (GREEDY, SamplingParams(max_tokens=5), None)]
    assert done["text"].tolist() == [*alone, "", ""]
    assert [error.partition(" must be")[0] for error in done["error"]] == [
        "",
        "",
        "",
        "params={'max_token': 5}",
        "params=7",
    ]


def test_model_of_generate_can_be_a_name_of_the_hub(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[tuple[HubName, object]] = []

    def pull(name: HubName, *, with_head: bool, **_: object) -> LocalFiles:
        pulled.append((name, with_head))
        return LocalFiles(demo)

    monkeypatch.setattr("pymtp.hub.from_pretrained.download_model", pull)
    done = Generate("hf:owner/name:Q4_K_M", params=GREEDY, n_ctx=64, n_threads=1, draft_tokens=0)({"prompt": ["a"]})
    assert pulled == [(HubName("owner/name", "Q4_K_M"), False)]
    assert len(done["text"]) == 1


def test_assigned_cpus_are_limited_to_the_largest_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        def get_actor_id(self) -> str:
            return "a"

        def get_assigned_resources(self) -> dict[str, float]:
            return {"CPU": 1000.0}

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", Worker)
    assert assigned_cpus() == 512


def test_columns_have_the_same_types_in_all_batches(generate: Generate) -> None:
    batches = [["import "], ["too long " * 1000], ["import ", ""], []]
    found = [generate({"prompt": np.array(prompts, dtype=object)}) for prompts in batches]
    added = [{name: pa.array(values).type for name, values in done.items() if name != "prompt"} for done in found]
    assert added[0] == {
        **dict.fromkeys(["text", "finish_reason", "error"], pa.string()),
        **dict.fromkeys(["prompt_tokens", "completion_tokens"], pa.int64()),
    }
    assert added == [added[0]] * 4


def test_generate_works_on_a_thread_that_runs_an_event_loop(generate: Generate) -> None:
    async def notebook() -> Any:
        return generate({"prompt": np.array(["import "])})

    assert asyncio.run(notebook())["finish_reason"].tolist() == ["length"]


@pytest.mark.parametrize("name", ["text", "finish_reason", "prompt_tokens", "completion_tokens", "error"])
def test_existing_column_is_not_overwritten(generate: Generate, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the rows already have columns named {name}:"):
        generate({"prompt": np.array(PROMPTS), name: np.arange(4)})


@pytest.mark.parametrize("params", [{"max_token": 5}, 5, [GREEDY], "x"], ids=str)
def test_generate_refuses_invalid_params(params: Any) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^params=.* must be SamplingParams, a mapping of some of max_tokens"
    ):
        Generate(params=params)
