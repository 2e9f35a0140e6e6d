"""Tests of the chat template in all three APIs: system messages, surrogates, reasoning efforts, variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.command import run
from helpers.served import Served
from helpers.servers import LONG, Server
from helpers.templates import template
from makers.gguf_variants import rewrite

QWEN = "Qwen3.5-4B"
# Like the template of Qwen3.8: accepts three reasoning efforts, and raises an exception for others.
EFFORTS = (
    "{%- if (reasoning_effort | default('xhigh')) not in ['low', 'medium', 'xhigh'] %}"
    "{{- raise_exception('no such effort') }}{% endif %}{{- reasoning_effort | default('') }}"
)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
ANSWER, LATE = {"role": "assistant", "content": "Hello."}, {"role": "system", "content": "Only JSON."}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.fixture(scope="module")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the shipped model with Qwen3.5's template and reasoning efforts."""
    path = tmp_path_factory.mktemp("models") / "qwen.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": EFFORTS + template(QWEN)})
    server = Server(model=path).ready()
    yield server
    server.close()


def send(server: Server, path: str, messages: Any, **more: Any) -> dict[str, Any]:
    """Send a small request, and return the JSON of the response. The texts may have lone surrogates."""
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {"model": "m", limit: 16, "temperature": 0, "input" if path == RESPONSES else "messages": messages, **more}
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}{path}", content=json.dumps(body), headers=headers, timeout=LONG)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def prompt_tokens(answer: dict[str, Any]) -> int:
    """Return the number of prompt tokens of a response."""
    usage = answer["usage"]
    return int(usage.get("prompt_tokens", usage.get("input_tokens", 0)) + usage.get("cache_read_input_tokens", 0))


def rendered(server: Server, messages: Any, **variables: Any) -> int:
    """Return the number of tokens of a chat that the template has rendered."""
    return len(server.llm.model.tokenize(server.llm.chat_template.render(messages, chat_template_kwargs=variables)))


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_system_messages_may_have_any_position(server: Server, path: str, role: str) -> None:
    if (path, role) == (MESSAGES, "developer"):
        role = "system"  # Anthropic's API has no role "developer"
    for before in ([USER, ANSWER], [USER]):
        answer = send(server, path, [*before, {**LATE, "role": role}])
        thinks = {} if path != MESSAGES else {"enable_thinking": False}
        assert prompt_tokens(answer) == rendered(server, [*before, {**LATE, "role": "user"}], **thinks)


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM],
        [ANSWER],
        [SYSTEM, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [LATE, SYSTEM, ANSWER],
    ],
    ids=str,
)
def test_chat_may_have_no_user_message(server: Server, messages: Any) -> None:
    assert send(server, CHAT, messages)


def test_lone_assistant_message_can_be_continued(server: Server) -> None:
    assert send(server, MESSAGES, [ANSWER])
    assert send(server, CHAT, [ANSWER], continue_final_message=True)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_lone_surrogate_is_read_as_the_replacement_character(server: Server, path: str) -> None:
    cut, whole = (send(server, path, [{"role": "user", "content": f"ls {end}..."}]) for end in ("\ud83d", "\ufffd"))
    assert prompt_tokens(cut) == prompt_tokens(whole)


def test_lone_surrogates_are_accepted_in_all_chat_fields(server: Server) -> None:
    half = "\ud83d"
    call = {**CALL, "function": {"name": "look", "arguments": json.dumps({"path": half})}}
    function = {
        "name": "look",
        "description": half,
        "parameters": {"type": "object", "properties": {half: {"enum": [half]}}},
    }
    messages = [
        {"role": "system", "content": half},
        {"role": "user", "content": [{"type": "text", "text": half}], "name": half},
        {"role": "assistant", "content": half, "reasoning_content": half, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": half},
    ]
    tools = [{"type": "function", "function": function}]
    more = {"stop": [half], "chat_template_kwargs": {"x": half}, "user": half, "metadata": {"a": half}}
    for stream in (False, True):
        body = {"model": half, "messages": messages, "tools": tools, "max_tokens": 4, "stream": stream, **more}
        answer = httpx.post(
            f"{server.url}{CHAT}", content=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=LONG
        )
        assert (answer.status_code, '"error":' in answer.text) == (200, False), answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m", "prompt": "ls \ud83d", "max_tokens": 2}),
        ("/v1/completions", {"model": "m", "prompt": ["ls \ud83d"], "stop": "\ude00", "max_tokens": 2}),
        ("/v1/completions", {"model": "m", "prompt": "ls", "json_schema": {"enum": ["\ud83d"]}, "max_tokens": 2}),
        (f"{MESSAGES}/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "\ud83d"}]}),
        ("/tokenize", {"content": "ls \ud83d"}),
    ],
)
def test_lone_surrogates_are_accepted_in_other_requests(server: Server, path: str, body: Any) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}{path}", content=json.dumps(body), headers=headers, timeout=LONG)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("effort", "taken"),
    [("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "xhigh"), ("xhigh", "xhigh"), ("max", "xhigh")],
)
@pytest.mark.parametrize(
    ("path", "asks"),
    [
        (CHAT, lambda effort: {"reasoning_effort": effort}),
        (CHAT, lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}}),
        (MESSAGES, lambda effort: {"output_config": {"effort": effort}, "thinking": {"type": "adaptive"}}),
        (RESPONSES, lambda effort: {"reasoning": {"effort": effort}}),
    ],
    ids=["chat", "variables", "messages", "responses"],
)
def test_reasoning_effort_is_mapped_to_an_effort_that_the_template_knows(
    server: Server, path: str, asks: Callable[[str], dict[str, Any]], effort: str, taken: str
) -> None:
    answer = send(server, path, [USER], **asks(effort))
    assert prompt_tokens(answer) == rendered(server, [USER], reasoning_effort=taken, enable_thinking=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [USER], "reasoning_effort": "banana"}),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "banana"}}),
        (MESSAGES, {"messages": [USER], "max_tokens": 4, "output_config": {"effort": "banana"}}),
        (RESPONSES, {"input": "Hi", "reasoning": {"effort": "banana"}}),
    ],
)
def test_error_for_an_unknown_effort_lists_the_known_efforts(server: Server, path: str, body: Any) -> None:
    answer = httpx.post(f"{server.url}{path}", json={"model": "m", **body}, timeout=LONG)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert all(word in message for word in ("banana", "none", "minimal", "low", "medium", "high", "xhigh", "max"))


@pytest.mark.parametrize(
    ("path", "off"),
    [
        *((path, {"enable_thinking": False}) for path in (CHAT, MESSAGES, RESPONSES)),
        *((path, {"thinking": {"type": "disabled"}}) for path in (CHAT, MESSAGES)),
        *((path, {"chat_template_kwargs": {"enable_thinking": False}}) for path in (CHAT, MESSAGES, RESPONSES)),
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        # The more specific field takes precedence.
        (CHAT, {"reasoning_effort": "low", "enable_thinking": False}),
        (CHAT, {"reasoning_effort": "low", "thinking": {"type": "disabled"}}),
        (CHAT, {"thinking": {"type": "enabled"}, "enable_thinking": False}),
        (CHAT, {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "enable_thinking": False}),
    ],
    ids=str,
)
def test_thinking_can_be_disabled_by_any_field(server: Server, path: str, off: dict[str, Any]) -> None:
    answer = send(server, path, [USER], grammar='root ::= "plain"', **off)
    if path == CHAT:
        assert answer["choices"][0]["message"]["content"] == "plain"
    else:
        (part,) = answer["content" if path == MESSAGES else "output"]
        assert part["type"] == ("text" if path == MESSAGES else "message")


def test_top_level_template_variables_must_be_booleans(server: Server) -> None:
    for name in ("enable_thinking", "preserve_thinking"):
        body = {"model": "m", "messages": [USER], name: "no"}
        answer = httpx.post(f"{server.url}{CHAT}", json=body, timeout=LONG)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_preserve_thinking_reaches_the_template(new_server: Callable[..., Server]) -> None:
    llm = {"chat_template": "{{ 'kept ' * 9 if preserve_thinking else 'dropped' }}{{ messages[0].content }}"}
    server = new_server(llm=llm).ready()
    kept, dropped = (send(server, CHAT, [USER], preserve_thinking=keep) for keep in (True, False))
    assert prompt_tokens(kept) > prompt_tokens(dropped)


def test_template_variables_of_a_request_override_single_variables_of_the_server(
    new_server: Callable[..., Server],
) -> None:
    llm = {"chat_template": template(QWEN), "chat_template_kwargs": {"enable_thinking": False, "x": 1}}
    server = new_server(llm=llm).ready()
    plain = send(server, CHAT, [USER], grammar='root ::= "plain"')
    assert plain["choices"][0]["message"]["content"] == "plain"
    thinks = send(server, CHAT, [USER], grammar='root ::= "plain"', chat_template_kwargs={"enable_thinking": True})
    assert thinks["choices"][0]["message"]["reasoning_content"] == "plain"
    assert httpx.get(f"{server.url}/props").json()["chat_template"] == template(QWEN)


def test_lone_surrogate_in_the_template_is_replaced_in_props(new_server: Callable[..., Server]) -> None:
    server = new_server(llm={"chat_template": "{{ messages[0].content }}\ud83d"}).ready()
    assert httpx.get(f"{server.url}/props", timeout=LONG).json()["chat_template"] == "{{ messages[0].content }}\ufffd"


def test_endless_template_gets_a_400_while_other_requests_are_answered(new_server: Callable[..., Server]) -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    server = new_server(llm={"chat_template": "{% if loops %}" + loop + "{% endif %}{{ messages[0].content }}"}).ready()
    body = {"model": "m", "messages": [USER], "chat_template_kwargs": {"loops": True}}
    answer = httpx.post(f"{server.url}{CHAT}", json=body, timeout=LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert "too many steps" in answer.json()["error"]["message"]
    assert send(server, CHAT, [USER])


def test_serve_accepts_a_template_file_and_template_variables(serve: Callable[..., Served], tmp_path: Path) -> None:
    file = tmp_path / "it.jinja"
    file.write_text("{{ messages[0].content }}{{ ' more' * n }}", encoding="utf-8")
    served = serve("--chat-template-file", file, "--chat-template-kwargs", '{"n": 3}').ready()
    assert served.get("/props").json()["chat_template"] == file.read_text(encoding="utf-8")
    body = {"messages": [USER], "model": "m", "max_tokens": 1}
    counts = []
    for variables in ({}, {"n": 3}, {"n": 4}):
        answer = httpx.post(f"{served.url}{CHAT}", json={**body, "chat_template_kwargs": variables}, timeout=LONG)
        counts.append(answer.json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[1] < counts[2]


def test_broken_template_of_the_model_file_is_logged_and_completions_work(
    serve: Callable[..., Served], demo: Path, tmp_path: Path
) -> None:
    path = tmp_path / "broken.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": "{% for a in b %}" * 40 + "{% endfor %}" * 40})
    served = serve("-m", path).ready()
    assert "the server will refuse chats" in served.line("broken chat template")
    answer = httpx.post(f"{served.url}{CHAT}", json={"messages": [USER], "model": "m"}, timeout=LONG)
    assert (answer.status_code, "broken chat template" in answer.text) == (400, True)
    assert served.ask().status_code == 200


@pytest.mark.parametrize("command", ["serve", "chat", "batch"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--chat-template-file", "missing.jinja"), "--chat-template-file 'missing.jinja' is neither"),
        (("--chat-template-file", "broken.jinja"), "broken chat template, line 2"),
        (("--chat-template-file", "notes.txt"), "not a template"),
        (("--chat-template-kwargs", "enable_thinking=false"), "must be JSON such as"),
        (("--chat-template-kwargs", "[1]"), "--chat-template-kwargs [1] must map"),
        (("--chat-template-kwargs", '{"messages": []}'), "must map names other than messages"),
    ],
)
def test_invalid_template_options_are_refused_at_the_start(
    command: str, options: tuple[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.jinja").write_text("{{ 1 }}\n{% for %}")
    Path("notes.txt").write_text("notes")
    Path("in.jsonl").write_text("")
    done = run(command, *(["in.jsonl", "out.jsonl"] if command == "batch" else []), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
