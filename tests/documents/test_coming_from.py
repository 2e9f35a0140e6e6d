"""Tests of the tables in docs/how-to/coming-from.md: each call runs, each option is read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from helpers.command import parse

from pymtp import LLM, Completion, InvalidRequestError, SamplingParams
from pymtp.hub import from_pretrained
from pymtp.hub.model_download import LocalFiles

MESSAGES = [{"role": "user", "content": "Hello."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
SCHEMA = {"type": "integer", "minimum": 0, "maximum": 99}
NAMES: dict[str, Any] = {
    "SamplingParams": SamplingParams,
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
    "choice": {"type": "function", "function": {"name": "get_weather"}},
    "schema": SCHEMA,
    "gbnf": 'root ::= "os"',
    "function": lambda tokens, row: None,
}


def rows(heading: str) -> list[tuple[str, str]]:
    """Return the rows of the table below a heading."""
    text = (ROOT / "docs/how-to/coming-from.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = [tuple(line.strip("| ").split(" | ")) for line in section.splitlines() if line.startswith("| `")]
    return [(theirs, ours) for theirs, ours in found]


ROWS = [*rows("llama-cpp-python"), *rows("vLLM")]
NONE = [ours for _, ours in ROWS if not ours.startswith("`")]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(n_ctx=1024, n_threads=1, draft_tokens=3) as llm:
        yield llm


def test_tables_have_twelve_calls_each_and_say_why_one_is_missing() -> None:
    assert len(rows("llama-cpp-python")) == len(rows("vLLM")) == 12
    assert len({theirs for theirs, _ in ROWS}) == 24
    assert all(re.match(r"none: .{20}", reason) for reason in NONE)


@pytest.mark.parametrize("ours", [ours for _, ours in ROWS if ours not in NONE])
def test_each_row_runs(llm: LLM, demo: Path, monkeypatch: pytest.MonkeyPatch, ours: str) -> None:
    monkeypatch.setattr(from_pretrained, "download_model", lambda *_, **__: LocalFiles(demo))
    monkeypatch.chdir(demo.parent)
    assert ours.startswith("`")
    assert ours.endswith("`")
    code = ours.strip("`").replace('"model.gguf"', repr(demo.name))
    made = eval(code, NAMES | {"llm": llm, "LLM": LLM})
    if isinstance(made, LLM):
        made.close()
        return
    if isinstance(made, Completion):
        assert made.finish_reason in ("stop", "length")
    elif "stream=True" in code:
        assert [chunk["choices"][0]["finish_reason"] for chunk in made][-1] in ("stop", "length")
    elif "response_format" in code:
        assert 0 <= json.loads(made["choices"][0]["message"]["content"]) <= 99
    elif "tool_choice" in code:
        (call,) = made["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    elif "json_schema" in code:
        assert 0 <= json.loads(made) <= 99
    elif "gbnf" in code:
        assert made["choices"][0]["text"] == "os"
    elif "detokenize" in code:
        assert made == "import os"
    else:
        assert made is not None


LLAMA_SERVER, OLLAMA = rows("llama-server"), rows("Ollama")


def told(cell: str) -> str:
    """Return the command line of a cell that begins with one, without the program's name."""
    return cell.split("`")[1].replace("\\|", "|").split("pymtp ")[-1]


@pytest.mark.parametrize("cell", [ours for _, ours in (*LLAMA_SERVER, *OLLAMA) if ours.startswith("`")])
def test_each_option_for_another_program_is_read(cell: str) -> None:
    words = shlex.split(told(cell))
    assert parse(*(["serve", *words] if words[0].startswith("-") else words))


def test_options_of_llama_server_are_taken_above_and_refused_below() -> None:
    text = (ROOT / "docs/how-to/coming-from.md").read_text(encoding="utf-8")
    below = text.split("options that are refused")[1].split("\n## ")[0]
    for theirs, _ in LLAMA_SERVER:
        words = shlex.split(told(theirs))
        if theirs in below:
            with pytest.raises(InvalidRequestError):
                parse("serve", *words)
        else:
            assert parse("serve", *words), theirs
