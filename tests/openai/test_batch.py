"""Tests of batch files: each line has one answer, in order, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
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
from pymtp.cli.batch_files import BatchFiles, BatchProgress, run_batch
from pymtp.openai.request_body import CHAT, TEXT

GREEDY = {"temperature": 0, "max_tokens": 8}


class Stopped(Exception):  # noqa: N818
    """The exception with which a test ends a run in the middle."""


@pytest.fixture(scope="module")
def batch_llm() -> Iterator[LLM]:
    with make_llm(n_seq_max=3) as llm:
        yield llm


def request(name: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": GREEDY | body}


def write_requests(path: Path, requests: list[Any]) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in requests))
    return path


def run_requests(llm: LLM, requests_file: Path, answers: Path, stop_after: int | None = None) -> list[BatchProgress]:
    seen: list[BatchProgress] = []

    def on_done(progress: BatchProgress) -> None:
        seen.append(progress)
        if len(seen) == stop_after:
            raise Stopped

    async def main() -> None:
        async with AsyncLLM(llm) as made:
            await run_batch(made, BatchFiles(requests_file, answers), on_done)

    asyncio.run(asyncio.wait_for(main(), 30))
    return seen


def read_answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_batch_answers_each_line_in_order(batch_llm: LLM, prompts: list[str], tmp_path: Path) -> None:
    requests_file = [request(f"r{i}", prompt=prompt, max_tokens=20 - i) for i, prompt in enumerate(prompts[:10])]
    out = tmp_path / "out.jsonl"
    seen = run_requests(batch_llm, write_requests(tmp_path / "in.jsonl", requests_file), out)
    lines = read_answers(out)
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(10)]
    for i, line in enumerate(lines):
        expected = batch_llm.generate(prompts[i], SamplingParams(20 - i))
        assert (line["response"]["status_code"], line["error"]) == (200, None)
        body = line["response"]["body"]
        assert body["choices"][0]["text"] == expected.text
        assert body["choices"][0]["finish_reason"] == expected.finish_reason
        assert body["usage"]["completion_tokens"] == len(expected.token_ids)
        assert body["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    assert [progress.done for progress in seen] == list(range(1, 11))


def test_batch_answers_a_request_for_no_tokens_with_the_prompt(batch_llm: LLM, tmp_path: Path) -> None:
    asked = write_requests(tmp_path / "in.jsonl", [request("a", prompt="import os", echo=True, max_tokens=0)])
    run_requests(batch_llm, asked, tmp_path / "out.jsonl")
    (line,) = read_answers(tmp_path / "out.jsonl")
    assert line["response"]["body"]["choices"][0]["text"] == "import os"
    assert line["response"]["body"]["usage"]["completion_tokens"] == 0


def test_batch_answers_a_chat_with_a_message(batch_llm: LLM, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]}]
    requests_file = write_requests(
        tmp_path / "in.jsonl", [request("a", CHAT, messages=messages, n=2, logprobs=True, top_logprobs=2)]
    )
    run_requests(batch_llm, requests_file, tmp_path / "out.jsonl")
    (line,) = read_answers(tmp_path / "out.jsonl")
    body = line["response"]["body"]
    expected = batch_llm.chat([{"role": "user", "content": "Hello."}], SamplingParams(8))
    assert body["object"] == "chat.completion"
    message = {"role": "assistant", "content": expected.content, "refusal": None}
    assert [choice["message"] for choice in body["choices"]] == [message] * 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    logprobs = body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in logprobs for byte in one["bytes"]).decode() == expected.text
    assert all(len(one["top_logprobs"]) == 2 for one in logprobs)


def test_missing_fields_get_the_defaults_of_the_models_file(tuned: Path, tmp_path: Path) -> None:
    story = [{"role": "user", "content": "Tell a story."}]
    bodies = [{"seed": 7}, {"seed": 7, "top_k": 2, "temperature": None}]
    requests_file = [
        request("a", CHAT, messages=story, max_tokens=24, **({"temperature": None} | body)) for body in bodies
    ]
    requests_file.append(request("b", prompt="def f(", max_tokens=24, temperature=None, seed=7))
    with make_llm(tuned, n_seq_max=2) as llm:
        run_requests(llm, write_requests(tmp_path / "in.jsonl", requests_file), tmp_path / "out.jsonl")
        found = [line["response"]["body"]["choices"][0] for line in read_answers(tmp_path / "out.jsonl")]
        params = SamplingParams(24, seed=7, **TUNED)
        greedy = SamplingParams(24)
        texts = [llm.chat(story, each).content for each in (params, replace(params, top_k=2))]
        assert [choice["message"]["content"] for choice in found[:2]] == texts
        assert len({*texts, llm.chat(story, greedy).content}) == 3
        assert found[2]["text"] == llm.generate("def f(", params).text != llm.generate("def f(", greedy).text


def test_batch_answers_with_tool_calls(batch_llm: LLM, tmp_path: Path) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}}}
    messages = [{"role": "user", "content": "Look."}]
    body = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required", "max_tokens": 100}
    requests_file = [request("a", CHAT, messages=messages, parallel_tool_calls=False, **body)]
    run_requests(batch_llm, write_requests(tmp_path / "in.jsonl", requests_file), tmp_path / "out.jsonl")
    (choice,) = read_answers(tmp_path / "out.jsonl")[0]["response"]["body"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) in ({}, {"at": "sky"}, {"at": "sea"})


@pytest.mark.parametrize("cut", [b"", b'{"id": "batch_req_1", "custom_id": "r4", "respo'])
def test_batch_resumes_where_an_earlier_run_stopped(
    batch_llm: LLM, prompts: list[str], tmp_path: Path, cut: bytes
) -> None:
    requests_file = write_requests(
        tmp_path / "in.jsonl", [request(f"r{i}", prompt=prompt) for i, prompt in enumerate(prompts[:8])]
    )
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    run_requests(batch_llm, requests_file, whole)
    with pytest.raises(Stopped):
        run_requests(batch_llm, requests_file, out, stop_after=4)
    assert len(read_answers(out)) == 4
    first = out.read_bytes()
    out.write_bytes(first + cut)
    assert len(run_requests(batch_llm, requests_file, out)) == 4
    assert out.read_bytes().startswith(first)

    def texts(path: Path) -> list[tuple[str, str]]:
        return [(line["custom_id"], line["response"]["body"]["choices"][0]["text"]) for line in read_answers(path)]

    assert texts(out) == texts(whole)
    assert run_requests(batch_llm, requests_file, out) == []


def test_batch_does_not_resume_answers_to_other_requests(batch_llm: LLM, tmp_path: Path) -> None:
    requests_file = write_requests(tmp_path / "in.jsonl", [request("a", prompt="x"), request("b", prompt="y")])
    other = tmp_path / "out.jsonl"
    run_requests(
        batch_llm, write_requests(tmp_path / "other.jsonl", [request("a", prompt="x"), request("c", prompt="y")]), other
    )
    before = other.read_bytes()
    with pytest.raises(InvalidRequestError, match=r"line 2 of .* answers another request"):
        BatchFiles(requests_file, other)
    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["notes without an end", "notes\n", '{"custom_id": "a"}\n', '{"id": "batch_req_1"\n', '{"id": "batch_req_1"}\n'],
)
def test_answers_file_with_other_contents_is_not_changed(tmp_path: Path, content: str) -> None:
    requests_file, notes = (
        write_requests(tmp_path / "in.jsonl", ["no JSON", request("a", prompt="x")]),
        tmp_path / "notes.txt",
    )
    notes.write_text(content)
    with pytest.raises(InvalidRequestError, match=r"line 1 of .* is not an answer"):
        BatchFiles(requests_file, notes)
    assert notes.read_text() == content


def test_more_answers_than_requests_are_refused(batch_llm: LLM, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run_requests(batch_llm, write_requests(tmp_path / "in.jsonl", [request("a", prompt="x"), "no JSON"]), out)
    with pytest.raises(InvalidRequestError, match=r"line 2 of .* answers another request"):
        BatchFiles(write_requests(tmp_path / "in.jsonl", [request("a", prompt="x")]), out)


def test_requests_and_answers_must_be_two_regular_files(tmp_path: Path) -> None:
    requests_file = tmp_path / "in.jsonl"
    requests_file.write_text(json.dumps(request("a", prompt="x")))  # the last line of many files has no newline
    before = requests_file.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(requests_file)
    with pytest.raises(InvalidRequestError, match="two files"):
        BatchFiles(requests_file, tmp_path / "link.jsonl")
    assert requests_file.read_bytes() == before
    with pytest.raises(FileNotFoundError):  # raised before a model is loaded
        BatchFiles(requests_file, tmp_path / "nowhere" / "out.jsonl")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="pipe is not a regular file"):
        BatchFiles(tmp_path / "pipe", tmp_path / "out.jsonl")
    with pytest.raises(InvalidRequestError, match="pipe is not a regular file"):
        BatchFiles(requests_file, tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="- is not supported here"):
        BatchFiles(requests_file, Path("-"))


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_answers_file_is_locked_against_a_second_run(tmp_path: Path) -> None:
    requests_file, out = write_requests(tmp_path / "in.jsonl", [request("a", prompt="x")]), tmp_path / "out.jsonl"
    first = BatchFiles(requests_file, out)
    with first.open_answers() as file:
        file.write(b'{"id": "batch_req_1", "custom')  # an unfinished line
        file.flush()
        with pytest.raises(InvalidRequestError, match="another run"):
            BatchFiles(requests_file, out)
    assert out.read_bytes() == b'{"id": "batch_req_1", "custom'
    assert BatchFiles(requests_file, out).done == 0


def test_byte_order_mark_of_the_requests_file_is_ignored(batch_llm: LLM, tmp_path: Path) -> None:
    requests_file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests_file.write_text(json.dumps(request("a", prompt="import ")), encoding="utf-8-sig")
    run_requests(batch_llm, requests_file, out)
    assert [line["response"]["status_code"] for line in read_answers(out)] == [200]


WRONG: list[tuple[Any, str]] = [
    ("no JSON", "the line is not JSON"),
    *(
        (f'{{"custom_id": {number}}}', f"not JSON: {number} is not a finite number")
        for number in ("NaN", "-Infinity", "1e999")
    ),
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


def test_answer_to_a_bad_line_is_its_error(batch_llm: LLM, tmp_path: Path) -> None:
    requests_file = [each for bad_line, _ in WRONG for each in (bad_line, request("good", prompt="import "))]
    seen = run_requests(batch_llm, write_requests(tmp_path / "in.jsonl", requests_file), tmp_path / "out.jsonl")
    lines = read_answers(tmp_path / "out.jsonl")
    for line, (bad_line, reason) in zip(lines[::2], WRONG, strict=True):
        assert line["response"]["status_code"] == 400, bad_line
        assert reason in line["response"]["body"]["error"]["message"]
    assert {line["response"]["status_code"] for line in lines[1::2]} == {200}
    assert seen[-1].failed == len(WRONG)
    # refused lines keep their custom_id, so that a later run can resume behind them
    named = [one.get("custom_id") if isinstance(one, dict) else None for one in requests_file]
    assert [line["custom_id"] for line in lines] == named
    assert run_requests(batch_llm, tmp_path / "in.jsonl", tmp_path / "out.jsonl") == []


def test_progress_counts_the_errors_of_an_earlier_run(batch_llm: LLM, tmp_path: Path) -> None:
    good = request("good", prompt="import ")
    requests_file = write_requests(tmp_path / "in.jsonl", ["no JSON", good, "no JSON", good])
    with pytest.raises(Stopped):
        run_requests(batch_llm, requests_file, tmp_path / "out.jsonl", stop_after=2)
    assert [progress.failed for progress in run_requests(batch_llm, requests_file, tmp_path / "out.jsonl")] == [2, 2]
    assert BatchFiles(requests_file, tmp_path / "out.jsonl").failed == 2


@pytest.mark.parametrize(
    ("line", "status"),
    [("[" * 100_000, 400), (request("\ud800"), 400), (request("x", prompt="import ", model="\ud800"), 200)],
)
def test_hostile_request_line_does_not_end_the_run(batch_llm: LLM, tmp_path: Path, line: Any, status: int) -> None:
    requests_file, out = (
        write_requests(tmp_path / "in.jsonl", [line, request("good", prompt="import ")]),
        tmp_path / "out.jsonl",
    )
    run_requests(batch_llm, requests_file, out)
    assert [one["response"]["status_code"] for one in read_answers(out)] == [status, 200]
    assert run_requests(batch_llm, requests_file, out) == []


def test_batch_command_answers_a_file_and_counts_failed_lines(tmp_path: Path, prompts: list[str]) -> None:
    requests_file = write_requests(tmp_path / "in.jsonl", [request("a", prompt=prompts[0]), "no JSON"])
    out = tmp_path / "out.jsonl"
    done = run("batch", requests_file, out, "-t", "1", "-c", "512")
    assert done.returncode == 1, done.stderr
    assert "2 of 2 answered, 1 with an error, 8 tokens" in done.stderr
    assert [line["response"]["status_code"] for line in read_answers(out)] == [200, 400]


def test_batch_needs_no_package_of_the_server() -> None:
    code = "import sys; sys.modules['pydantic'] = sys.modules['fastapi'] = None; import pymtp.cli.batch_files"
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)
