"""Claims about files of requests: an answer for each line, in order, once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.command import run
from helpers.tuned import TUNED

from pymtp import LLM, AsyncLLM, InvalidRequestError, SamplingParams
from pymtp.openai.batch import BatchFiles, Progress, run_batch
from pymtp.openai.requests import CHAT, TEXT

GREEDY = {"temperature": 0, "max_tokens": 8}


class Stopped(Exception):  # noqa: N818
    """A run is ended in the middle."""


@pytest.fixture(scope="module")
def several() -> Iterator[LLM]:
    with make_llm(n_seq_max=3) as llm:
        yield llm


def request(name: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": GREEDY | body}


def write(path: Path, requests: list[Any]) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in requests))
    return path


def answer(llm: LLM, asked: Path, answers: Path, stop_after: int | None = None) -> list[Progress]:
    seen: list[Progress] = []

    def on_done(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == stop_after:
            raise Stopped

    async def main() -> None:
        async with AsyncLLM(llm) as made:
            await run_batch(made, BatchFiles(asked, answers), on_done)

    asyncio.run(asyncio.wait_for(main(), 30))
    return seen


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_has_its_answer_in_order(several: LLM, prompts: list[str], tmp_path: Path) -> None:
    asked = [request(f"r{i}", prompt=prompt, max_tokens=20 - i) for i, prompt in enumerate(prompts[:10])]
    out = tmp_path / "out.jsonl"
    seen = answer(several, write(tmp_path / "in.jsonl", asked), out)
    lines = read(out)
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(10)]
    for i, line in enumerate(lines):
        expected = several.generate(prompts[i], SamplingParams(20 - i))
        assert (line["response"]["status_code"], line["error"]) == (200, None)
        body = line["response"]["body"]
        assert body["choices"][0]["text"] == expected.text
        assert body["choices"][0]["finish_reason"] == expected.finish_reason
        assert body["usage"]["completion_tokens"] == len(expected.token_ids)
        assert body["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    assert [progress.done for progress in seen] == list(range(1, 11))


def test_a_chat_is_answered_with_a_message(several: LLM, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]}]
    asked = write(tmp_path / "in.jsonl", [request("a", CHAT, messages=messages, n=2, logprobs=True, top_logprobs=2)])
    answer(several, asked, tmp_path / "out.jsonl")
    (line,) = read(tmp_path / "out.jsonl")
    body = line["response"]["body"]
    expected = several.chat([{"role": "user", "content": "Hello."}], SamplingParams(8)).text
    assert body["object"] == "chat.completion"
    message = {"role": "assistant", "content": expected, "refusal": None}
    assert [choice["message"] for choice in body["choices"]] == [message] * 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    said = body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in said for byte in one["bytes"]).decode() == expected
    assert all(len(one["top_logprobs"]) == 2 for one in said)


def test_what_a_body_leaves_open_is_as_the_models_file_says(tuned: Path, tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "Hello."}]
    bodies = [{"seed": 5}, {"seed": 5, "top_k": 2, "temperature": None}]
    asked = [request("a", CHAT, messages=hello, max_tokens=24, **({"temperature": None} | body)) for body in bodies]
    asked.append(request("b", prompt="def f(", max_tokens=24, temperature=None, seed=5))
    with make_llm(tuned, n_seq_max=2) as llm:
        answer(llm, write(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl")
        found = [line["response"]["body"]["choices"][0] for line in read(tmp_path / "out.jsonl")]
        params = SamplingParams(24, seed=5, **TUNED)
        texts = [llm.chat(hello, each).text for each in (params, replace(params, top_k=2))]
        assert [choice["message"]["content"] for choice in found[:2]] == texts
        assert found[2]["text"] == llm.generate("def f(", params).text


def test_a_batch_calls_tools(several: LLM, tmp_path: Path) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}}}
    messages = [{"role": "user", "content": "Look."}]
    body = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required", "max_tokens": 100}
    asked = [request("a", CHAT, messages=messages, parallel_tool_calls=False, **body)]
    answer(several, write(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl")
    (choice,) = read(tmp_path / "out.jsonl")[0]["response"]["body"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) in ({}, {"at": "sky"}, {"at": "sea"})


@pytest.mark.parametrize("cut", [b"", b'{"id": "batch_req_1", "custom_id": "r4", "respo'])
def test_a_run_goes_on_where_another_stopped(several: LLM, prompts: list[str], tmp_path: Path, cut: bytes) -> None:
    asked = write(tmp_path / "in.jsonl", [request(f"r{i}", prompt=prompt) for i, prompt in enumerate(prompts[:8])])
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    answer(several, asked, whole)
    with pytest.raises(Stopped):
        answer(several, asked, out, stop_after=4)
    assert len(read(out)) == 4
    first = out.read_bytes()
    out.write_bytes(first + cut)
    assert len(answer(several, asked, out)) == 4
    assert out.read_bytes().startswith(first)

    def texts(path: Path) -> list[tuple[str, str]]:
        return [(line["custom_id"], line["response"]["body"]["choices"][0]["text"]) for line in read(path)]

    assert texts(out) == texts(whole)
    assert answer(several, asked, out) == []


def test_answers_to_other_requests_are_not_gone_on_with(several: LLM, tmp_path: Path) -> None:
    asked = write(tmp_path / "in.jsonl", [request("a", prompt="x"), request("b", prompt="y")])
    other = tmp_path / "out.jsonl"
    answer(several, write(tmp_path / "other.jsonl", [request("a", prompt="x"), request("c", prompt="y")]), other)
    before = other.read_bytes()
    with pytest.raises(InvalidRequestError, match=r"line 2 of .* answers another request"):
        BatchFiles(asked, other)
    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["notes without an end", "notes\n", '{"custom_id": "a"}\n', '{"id": "batch_req_1"\n', '{"id": "batch_req_1"}\n'],
)
def test_a_file_that_holds_no_answers_is_left_alone(tmp_path: Path, content: str) -> None:
    asked, notes = write(tmp_path / "in.jsonl", ["no JSON", request("a", prompt="x")]), tmp_path / "notes.txt"
    notes.write_text(content)
    with pytest.raises(InvalidRequestError, match=r"line 1 of .* is no answer"):
        BatchFiles(asked, notes)
    assert notes.read_text() == content


def test_more_answers_than_requests_are_refused(several: LLM, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    answer(several, write(tmp_path / "in.jsonl", [request("a", prompt="x"), "no JSON"]), out)
    with pytest.raises(InvalidRequestError, match=r"line 2 of .* answers another request"):
        BatchFiles(write(tmp_path / "in.jsonl", [request("a", prompt="x")]), out)


def test_requests_and_answers_are_two_files_that_can_be_read_again(tmp_path: Path) -> None:
    asked = tmp_path / "in.jsonl"
    asked.write_text(json.dumps(request("a", prompt="x")))  # the last line of many files has no end
    before = asked.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(asked)
    with pytest.raises(InvalidRequestError, match="two files"):
        BatchFiles(asked, tmp_path / "link.jsonl")
    assert asked.read_bytes() == before
    with pytest.raises(FileNotFoundError):  # now, not after a model was loaded
        BatchFiles(asked, tmp_path / "nowhere" / "out.jsonl")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="pipe is no regular file"):
        BatchFiles(tmp_path / "pipe", tmp_path / "out.jsonl")
    with pytest.raises(InvalidRequestError, match="pipe is no regular file"):
        BatchFiles(asked, tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="- is no file here"):
        BatchFiles(asked, Path("-"))


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_two_runs_at_once_do_not_write_the_same_answers(tmp_path: Path) -> None:
    asked, out = write(tmp_path / "in.jsonl", [request("a", prompt="x")]), tmp_path / "out.jsonl"
    first = BatchFiles(asked, out)
    with first.append() as file:
        file.write(b'{"id": "batch_req_1", "custom')  # as far as it came by now
        file.flush()
        with pytest.raises(InvalidRequestError, match="another run"):
            BatchFiles(asked, out)
    assert out.read_bytes() == b'{"id": "batch_req_1", "custom'
    assert BatchFiles(asked, out).done == 0


def test_a_byte_order_mark_is_no_part_of_the_first_line(several: LLM, tmp_path: Path) -> None:
    asked, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text(json.dumps(request("a", prompt="import ")), encoding="utf-8-sig")
    answer(several, asked, out)
    assert [line["response"]["status_code"] for line in read(out)] == [200]


WRONG: list[tuple[Any, str]] = [
    ("no JSON", "the line is no JSON"),
    *((f'{{"custom_id": {number}}}', f"no JSON: {number} is no number") for number in ("NaN", "-Infinity", "1e999")),
    ([1], "a request is an object"),
    ({"custom_id": "x", "url": TEXT, "body": 3}, "a request is an object"),
    (request("x", "/v1/embeddings", input="a"), "url must be"),
    (request("x"), "prompt must be"),
    (request("x", prompt=["a", "b"]), "prompt must be"),
    (request("x", prompt=""), "the prompt is empty"),
    (request("x", prompt=[10**6]), "outside the vocabulary"),
    (request("x", prompt=[3] * 2000), "n_ctx is 1024"),
    (request("x", prompt="a", temperature=-1), "temperature=-1"),
    (request("x", prompt="a", max_token=5), "max_token: not supported"),
    (request("x", prompt="a", tools=[]), "tools: not supported"),
    (request("x", prompt="a", stream=True), "a batch has no streams"),
    *((request("x", prompt="a", n=n), "n=") for n in ("2", [2], True, 0.5)),
    (request("x", CHAT, messages=[], best_of="a"), "best_of='a'"),
    *((request("x", prompt="a", stop=stop), "stop") for stop in (5, True, 0.5, {"a": 1}, [5])),
    (request("x", prompt="a", logit_bias={"a": 1}), "logit_bias must map"),
    (request("x", prompt="a", logit_bias={"5": 10**400}), "logit_bias must map"),
    (request("x", prompt="a", response_format={"type": "xml"}), "response_format must be"),
    (request("x", CHAT, messages="hello"), "messages must be a list"),
    (request("x", CHAT, messages=[{"role": "user"}]), "content"),
    (request("x", CHAT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "content must be text"),
]


def test_a_line_that_is_no_good_has_its_error_as_its_answer(several: LLM, tmp_path: Path) -> None:
    asked = [each for wrong, _ in WRONG for each in (wrong, request("good", prompt="import "))]
    seen = answer(several, write(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl")
    lines = read(tmp_path / "out.jsonl")
    for line, (wrong, why) in zip(lines[::2], WRONG, strict=True):
        assert line["response"]["status_code"] == 400, wrong
        assert why in line["response"]["body"]["error"]["message"]
    assert {line["response"]["status_code"] for line in lines[1::2]} == {200}
    assert seen[-1].failed == len(WRONG)
    # refused lines keep their names, so that a run goes on after them
    named = [one.get("custom_id") if isinstance(one, dict) else None for one in asked]
    assert [line["custom_id"] for line in lines] == named
    assert answer(several, tmp_path / "in.jsonl", tmp_path / "out.jsonl") == []


def test_errors_of_an_earlier_run_count(several: LLM, tmp_path: Path) -> None:
    good = request("good", prompt="import ")
    asked = write(tmp_path / "in.jsonl", ["no JSON", good, "no JSON", good])
    with pytest.raises(Stopped):
        answer(several, asked, tmp_path / "out.jsonl", stop_after=2)
    assert [progress.failed for progress in answer(several, asked, tmp_path / "out.jsonl")] == [2, 2]
    assert BatchFiles(asked, tmp_path / "out.jsonl").failed == 2


@pytest.mark.parametrize(
    ("line", "status"),
    [("[" * 100_000, 400), (request("\ud800"), 400), (request("x", prompt="import ", model="\ud800"), 200)],
)
def test_no_line_ends_the_run(several: LLM, tmp_path: Path, line: Any, status: int) -> None:
    asked, out = write(tmp_path / "in.jsonl", [line, request("good", prompt="import ")]), tmp_path / "out.jsonl"
    answer(several, asked, out)
    assert [one["response"]["status_code"] for one in read(out)] == [status, 200]
    assert answer(several, asked, out) == []


def test_the_command_answers_a_file_and_says_how_many_lines_failed(tmp_path: Path, prompts: list[str]) -> None:
    asked = write(tmp_path / "in.jsonl", [request("a", prompt=prompts[0]), "no JSON"])
    out = tmp_path / "out.jsonl"
    done = run("batch", asked, out, "-t", "1", "-c", "512")
    assert done.returncode == 1, done.stderr
    assert "2 of 2 answered, 1 with an error, 8 tokens" in done.stderr
    assert [line["response"]["status_code"] for line in read(out)] == [200, 400]
