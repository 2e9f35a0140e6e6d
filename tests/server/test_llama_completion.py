"""Tests of /completion and /completions, in the form of llama.cpp's server."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.servers import LONG, Server
from pydantic import TypeAdapter

from pymtp import SamplingParams
from pymtp.errors import InvalidRequestError
from pymtp.sampling import TokenLogprobs
from pymtp.server.llama.probabilities import check_post_sampling, sampled_probs
from pymtp.server.llama.read import NativeOptions, ignored_names, read_native, read_prompts
from pymtp.server.llama.types import NativeChunk, NativeCompletion
from pymtp.server.llama.write import check_settings, select_fields
from pymtp.server.openai.types import MAX_PROMPTS

PROMPT = "def fibonacci(n):"
GREEDY = {"prompt": PROMPT, "n_predict": 16, "temperature": 0}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


def post(http: httpx.Client, path: str = "/completion", **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(http: httpx.Client, **body: Any) -> list[Any]:
    response = http.post("/completion", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


def test_completion_has_the_text_of_the_llm(http: httpx.Client, server: Server) -> None:
    done = server.llm.generate(PROMPT, SamplingParams(max_tokens=16))
    answer = post(http, **GREEDY, return_tokens=True)
    TypeAdapter(NativeCompletion).validate_python(answer)
    assert (answer["content"], answer["tokens"]) == (done.text, done.token_ids)
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("limit", "", False)
    n_prompt = len(done.prompt_token_ids)
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (n_prompt, 16)
    assert answer["tokens_cached"] == n_prompt + 16
    assert answer["prompt"] == PROMPT
    assert answer["has_new_line"] == ("\n" in done.text)
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["dry_multiplier"], settings["samplers"][0]) == (16, 0.0, "penalties")
    times = answer["timings"]
    assert (times["prompt_n"] + times["cache_n"], times["predicted_n"]) == (n_prompt, 16)
    assert times["predicted_per_second"] == pytest.approx(15e3 / times["predicted_ms"])
    assert post(http, **GREEDY)["tokens"] == []


def test_stream_joins_to_the_whole_answer(http: httpx.Client) -> None:
    whole = post(http, **GREEDY, return_tokens=True)
    *chunks, last = stream(http, **GREEDY)
    for chunk in chunks:
        TypeAdapter(NativeChunk).validate_python(chunk)
    TypeAdapter(NativeCompletion).validate_python(last)
    assert "".join(chunk["content"] for chunk in chunks) + last["content"] == whole["content"]
    assert [token for chunk in chunks for token in chunk["tokens"]] == whole["tokens"]
    assert [chunk["stop"] for chunk in [*chunks, last]] == [False] * len(chunks) + [True]
    assert chunks[-1]["tokens_predicted"] == last["tokens_predicted"] == 16


def test_prompts_of_texts_tokens_and_objects_mean_the_same(http: httpx.Client, server: Server) -> None:
    tokens = server.llm.model.tokenize(PROMPT)
    whole = post(http, **GREEDY)["content"]
    text = server.llm.model.detokenize(tokens[1:])
    for prompt in (tokens, [*tokens[:-1], tokens[-1]], [tokens[0], text], {"prompt_string": PROMPT}):
        assert post(http, **{**GREEDY, "prompt": prompt})["content"] == whole


def test_several_prompts_are_answered_by_a_list_in_their_order(http: httpx.Client, server: Server) -> None:
    tokens = server.llm.model.tokenize("import os")
    answers = post(http, **{**GREEDY, "prompt": [PROMPT, tokens], "n_cmpl": 2})
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["prompt"] for answer in answers] == [PROMPT, PROMPT, "import os", "import os"]
    assert answers[0]["content"] == answers[1]["content"] == post(http, **GREEDY)["content"]
    assert isinstance(post(http, **{**GREEDY, "prompt": [PROMPT]}), list)
    last = [event for event in stream(http, **{**GREEDY, "prompt": [PROMPT, tokens]}) if event["stop"]]
    assert sorted(event["index"] for event in last) == [0, 1]


def test_stop_types_tell_why_a_completion_ended(http: httpx.Client) -> None:
    text = post(http, **GREEDY)["content"]
    word = text[3:6]
    stopped = post(http, **GREEDY, stop=["never in it", word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == text[: text.index(word)]
    ended = post(http, **GREEDY, grammar='root ::= "ab"')
    assert (ended["content"], ended["stop_type"]) == ("ab", "eos")


def test_full_context_is_told_as_truncated(http: httpx.Client, server: Server) -> None:
    n_prompt = server.llm.context.n_ctx - 8
    answer = post(http, prompt=[server.llm.model.tokenize("a")[0]] * n_prompt, n_predict=-1, ignore_eos=True)
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")


def test_n_predict_0_caches_the_prompt_and_writes_nothing(http: httpx.Client) -> None:
    prompt = "class Cached:\n    pass\n" * 20
    answer = post(http, prompt=prompt, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"], answer["timings"]["predicted_n"]) == ("", 0, 0)
    assert post(http, prompt=prompt, n_predict=1)["timings"]["cache_n"] > 0
    (last,) = stream(http, prompt=prompt, n_predict=0)
    assert (last["stop"], last["content"]) == (True, "")


def test_n_probs_reports_the_models_log_probabilities(http: httpx.Client, server: Server) -> None:
    done = server.llm.generate(PROMPT, SamplingParams(max_tokens=16, logprobs=3))
    reported = post(http, **GREEDY, n_probs=3)["completion_probabilities"]
    assert done.logprobs is not None
    assert [one["id"] for one in reported] == done.token_ids
    assert [one["logprob"] for one in reported] == pytest.approx([one.logprob for one in done.logprobs])
    assert [[top["id"] for top in one["top_logprobs"]] for one in reported] == [
        [number for number, _ in one.top] for one in done.logprobs
    ]
    events = [event for event in stream(http, **GREEDY, n_probs=3) if not event["stop"]]
    assert [len(event["completion_probabilities"]) for event in events] == [1] * 16


def test_post_sampling_probs_are_those_of_the_sampled_tokens(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 16, "temperature": 1.0, "seed": 3, "top_k": 20, "n_probs": 20}
    for one in post(http, **body, post_sampling_probs=True)["completion_probabilities"]:
        assert 0 < one["prob"] <= 1
        assert one["id"] in [top["id"] for top in one["top_probs"]]
        assert sum(top["prob"] for top in one["top_probs"]) == pytest.approx(1)


def test_sampled_probs_are_filtered_and_scaled_like_the_sampling() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    one = TokenLogprobs(0, math.log(0.5), tuple((i, math.log(prob)) for i, prob in enumerate(probs)))
    plain = {"temperature": 1.0, "top_k": 5, "top_p": 1.0, "min_p": 0.0}

    def found(**changes: float) -> list[float]:
        return [prob for _, prob in sampled_probs(one, SamplingParams(**(plain | changes)))]  # type: ignore[arg-type]

    assert found() == pytest.approx(probs)
    assert found(top_k=2) == pytest.approx([0.625, 0.375])
    assert found(top_p=0.7) == pytest.approx([0.625, 0.375])
    assert found(min_p=0.2) == pytest.approx(probs[:3] / probs[:3].sum())
    assert found(temperature=0.5) == pytest.approx(probs**2 / (probs**2).sum())
    assert found(temperature=0) == [1.0]


@pytest.mark.parametrize(
    "params",
    [
        *({"logit_bias": {1: 1.0}}, {"presence_penalty": 1.0}, {"grammar": 'root ::= "a"'}, {"top_k": 0}),
        *({"dry_multiplier": 0.8}, {"top_n_sigma": 1.0}, {"typical_p": 0.9}, {"xtc_probability": 0.5}),
        *({"dynatemp_range": 0.5}, {"samplers": ["temperature", "top_k"]}),
    ],
)
def test_post_sampling_probs_refuse_what_they_cannot_tell(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="post_sampling_probs"):
        check_post_sampling(SamplingParams(**({"temperature": 1.0} | params)))


def test_logit_bias_takes_texts_and_pairs(http: httpx.Client, server: Server) -> None:
    first = post(http, **GREEDY, return_tokens=True)
    text = server.llm.model.detokenize(first["tokens"][:1])
    for bias in ([[first["tokens"][0], False]], [[text, -100]], {text: -100}, {str(first["tokens"][0]): -100}):
        assert post(http, **GREEDY, logit_bias=bias, return_tokens=True)["tokens"][0] != first["tokens"][0]


def test_fields_without_effect_are_named(http: httpx.Client) -> None:
    response = http.post("/completion", json={**GREEDY, "id_slot": 2, "n_keep": 0, "t_max_prompt_ms": 9, "tpyo": 1})
    assert response.headers["x-pymtp-ignored"] == "id_slot, t_max_prompt_ms, tpyo"
    assert "x-pymtp-ignored" not in http.post("/completion", json={**GREEDY, "id_slot": -1}).headers


def test_answers_that_would_repeat_gigabytes_of_settings_are_refused(http: httpx.Client) -> None:
    params = SamplingParams(grammar='root ::= "a" #' + "a" * 2**16)
    check_settings(params, NativeOptions(), 128)
    for options in (NativeOptions(stream=True), NativeOptions(response_fields=["content"])):
        check_settings(params, options, 2048)
    for options in (NativeOptions(), NativeOptions(response_fields=["generation_settings/grammar"])):
        with pytest.raises(InvalidRequestError, match="2048 answers would repeat settings"):
            check_settings(params, options, 2048)
    refused = http.post("/completion", json={"prompt": ["a"] * 2048, "n_predict": 0, "grammar": params.grammar})
    assert refused.status_code == 400


def test_response_fields_select_and_unnest() -> None:
    answer = {"content": "a", "timings": {"prompt_n": 2}}
    assert select_fields(answer, ["content", "timings/prompt_n", "none", "content/x"]) == {
        "content": "a",
        "timings/prompt_n": 2,
    }
    assert select_fields(answer, [""]) == {}


def test_progress_counts_from_the_cached_tokens_to_all(http: httpx.Client) -> None:
    prompt = "x = [1, 2, 3]\n" * 150
    events = stream(http, prompt=prompt, n_predict=2, return_progress=True, timings_per_token=True)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[0]["time_ms"] == 0
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["tokens_evaluated"]
    assert len({(one["total"], one["cache"]) for one in progress}) == 1
    counted = [event["timings"]["prompt_n"] for event in events if "prompt_progress" in event]
    assert counted == [one["processed"] - one["cache"] for one in progress]
    done = [one["processed"] for one in progress]
    assert done == sorted(set(done))
    assert all(value >= 0 for event in events for value in event["timings"].values())


def test_completion_of_several_lines_ends_in_time(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 4000, "grammar": 'root ::= ("a\\n"){1900}', "t_max_predict_ms": 1}
    answer = post(http, **body)
    assert answer["tokens_predicted"] < 1900
    assert (answer["stop_type"], answer["truncated"]) == ("limit", False)
    assert set(answer["content"].split("\n")) <= {"a", ""}


@pytest.mark.parametrize("path", ["/completions", "/completions/"])
def test_completions_without_v1_follow_whether_a_model_is_named(http: httpx.Client, path: str) -> None:
    native = post(http, path, **GREEDY)
    answer = post(http, path, model="m", prompt=PROMPT, max_tokens=16, temperature=0)
    assert answer["choices"][0]["text"] == native["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["YQ=="]}}, "prompt.multimodal_data[0]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["YQ=="]}}, "prompt_string"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[-1]]}, "prompt[0][0]"),
        ({"prompt": [2**30]}, None),
        ({"n_predict": 2}, "prompt"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "n_probs": 1000}, "n_probs"),
        ({"prompt": "a", "logit_bias": [["a", "b"]]}, "logit_bias"),
        ({"prompt": "a", "grammar": "root := a"}, None),
        ({"prompt": "a" * 100_000}, None),
    ],
)
def test_wrong_bodies_are_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str | None) -> None:
    response = http.post("/completion", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in (param, None)
    assert response.json()["error"]["message"]


def test_list_with_a_number_is_one_prompt() -> None:
    assert read_prompts(["a", 1]) == [["a", 1]]
    assert read_prompts(["a", [1]]) == ["a", [1]]
    assert read_prompts("a") == ["a"]


def test_number_of_prompts_has_a_limit() -> None:
    assert len(read_prompts(["a"] * MAX_PROMPTS)) == MAX_PROMPTS
    with pytest.raises(InvalidRequestError, match=f"input: .*at most {MAX_PROMPTS} prompts, not {MAX_PROMPTS + 1}"):
        read_prompts(["a"] * (MAX_PROMPTS + 1), "input")
    tokens = [0] * (MAX_PROMPTS + 1)
    assert read_prompts(tokens) == [tokens]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings_and_progress_are_in_openais_streams(http: httpx.Client, path: str) -> None:
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "hi " * 40}]} if "chat" in path else {"prompt": "hi"}
    )
    body = {"model": "m", "max_tokens": 4, "temperature": 0, **prompt}
    answer = post(http, path, **body)
    assert answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]
    n_prompt = answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
    assert n_prompt == answer["usage"]["prompt_tokens"]
    asked = {**body, "stream": True, "timings_per_token": True, "return_progress": True}
    lines = http.post(path, json=asked).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"] == n_prompt
    assert chunks[-1]["timings"]["predicted_n"] == answer["timings"]["predicted_n"]
    texts = [chunk for chunk in chunks if chunk["choices"][0].get("text") or chunk["choices"][0].get("delta")]
    assert all("timings" in chunk for chunk in texts if "role" not in chunk["choices"][0].get("delta", {}))


def test_echo_is_ignored_and_costs_nothing(server: Server) -> None:
    """llama.cpp's server does not repeat prompts; the log-probabilities of a repeated one take a computation."""
    fields = {"prompt": PROMPT, "echo": True, "n_probs": 3}
    request, _ = read_native(fields, server.llm.model, server.llm.sampling_defaults)
    assert request.params.prompt_logprobs is None
    assert ignored_names(fields) == ["echo"]
