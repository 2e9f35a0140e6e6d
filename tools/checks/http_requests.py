"""Random HTTP requests of all kinds for a server, and checks of their responses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from http_wire import Answer

Api = Literal["chat", "completions", "responses", "messages"]
PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
BUSY = (429,)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Limits:
    """The limits with which the server was started."""

    key: str
    n_ctx: int
    max_body: int


@dataclass(frozen=True)
class HttpRequest:
    """A request, and its allowed responses.

    statuses: the allowed status codes. code: the code in the error object, if it must have one.
    """

    kind: str
    path: str
    body: bytes
    statuses: tuple[int, ...] = (200,)
    api: Api = "chat"
    stream: bool = False
    n: int = 1
    code: str | None = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


class HttpRequestGenerator:
    """Makes random HTTP requests."""

    def __init__(self, numbers: random.Random, limits: Limits, apis: Sequence[Api], texts: Sequence[str]) -> None:
        """Set up the generator. apis: the APIs that the server has."""
        self._numbers, self._limits, self._apis, self._texts = numbers, limits, apis, texts

    def good(self, most: int = 24) -> HttpRequest:
        """Return a valid request. It is answered unless the queue is full. most: the maximum of tokens."""
        numbers = self._numbers
        api = numbers.choice(self._apis)
        stream = numbers.random() < 0.5
        n = numbers.choice((1, 1, 1, 1, 2)) if api in ("chat", "completions") else 1
        content = self._content(api, numbers.randint(1, most)) | {"stream": stream}
        if n > 1:
            content["n"] = n
        if api != "completions" and numbers.random() < 0.2:
            content |= self._tools(api)
        return self._request("answered", api, content, (200, *BUSY), stream=stream, n=n)

    def refused(self) -> HttpRequest:
        """Return a request that is over a limit or invalid."""
        limits = (self._large_body, self._long_prompt)
        invalid = (self._wrong_key, self._invalid_json, self._odd_value, self._wrong_path)
        return self._numbers.choice((*limits, *invalid))()

    def _content(self, api: Api, tokens: int) -> dict[str, Any]:
        numbers = self._numbers
        text = numbers.choice(self._texts)
        start = numbers.randrange(max(1, len(text) - 200))
        text = text[start : start + numbers.randint(1, 200)]
        content: dict[str, Any] = {"model": "m", "temperature": numbers.choice((0.0, 0.7, 1.0))}
        if api == "completions":
            return content | {"prompt": text, "max_tokens": tokens, "seed": numbers.randrange(2**31)}
        if api == "responses":
            # only few are stored: a thousand stored responses take megabytes, which is no leak
            stored = numbers.random() < 0.1
            return content | {"input": text, "max_output_tokens": max(16, tokens), "store": stored}
        content |= {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        return content if api == "messages" else content | {"seed": numbers.randrange(2**31)}

    def _tools(self, api: Api) -> dict[str, Any]:
        about = {"name": "weather", "description": "Tells the weather."}
        if api == "messages":
            return {"tools": [about | {"input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
        if api == "responses":
            return {"tools": [about | {"type": "function", "parameters": SCHEMA}], "tool_choice": "required"}
        tools = [{"type": "function", "function": about | {"parameters": SCHEMA}}]
        return {"tools": tools, "tool_choice": self._numbers.choice(("auto", "required"))}

    def _request(self, kind: str, api: Api, content: Any, statuses: tuple[int, ...], **more: Any) -> HttpRequest:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {self._limits.key}"} | more.pop("headers", {})
        return HttpRequest(kind, PATHS[api], body, statuses, api, headers=headers, **more)

    def _large_body(self) -> HttpRequest:
        api = self._numbers.choice(self._apis)
        content = self._content(api, 4) | {"user": "a" * (self._limits.max_body + self._numbers.randrange(2**18))}
        return self._request("body too large", api, content, (413,))

    def _long_prompt(self) -> HttpRequest:
        api = self._numbers.choice(self._apis)
        long = "word " * (4 * self._limits.n_ctx)
        content = self._content(api, 4)
        if "prompt" in content:
            content["prompt"] = long
        elif "input" in content:
            content["input"] = long
        else:
            content["messages"] = [{"role": "user", "content": long}]
        code = None if api == "messages" else "context_length_exceeded"
        return self._request("prompt too long", api, content, (400, *BUSY), code=code)

    def _wrong_key(self) -> HttpRequest:
        api = self._numbers.choice(self._apis)
        wrong = self._numbers.choice(({"Authorization": "Bearer wrong"}, {"Authorization": ""}))
        return self._request("wrong key", api, self._content(api, 4), (401,), headers=wrong)

    def _invalid_json(self) -> HttpRequest:
        api = self._numbers.choice(self._apis)
        body = json.dumps(self._content(api, 4)).encode()
        torn = self._numbers.choice((body[: self._numbers.randrange(len(body))], b"\xff" + body, b"[" * 100_000, b"7"))
        return self._request("no JSON", api, torn, (400,))

    def _odd_value(self) -> HttpRequest:
        api = self._numbers.choice(self._apis)
        odd = self._numbers.choice(({"temperature": "hot"}, {"temperature": -1}, {"stream": 7}, {"top_p": 2.0}))
        return self._request("odd value", api, self._content(api, 4) | odd, (400,))

    def _wrong_path(self) -> HttpRequest:
        method, path, status = self._numbers.choice((("POST", "/v1/nothing", 404), ("PUT", PATHS["chat"], 405)))
        key = {"Authorization": f"Bearer {self._limits.key}"}
        return HttpRequest("no such thing", path, b"{}", (status,), method=method, headers=key)


def find_problem(request: HttpRequest, answer: Answer) -> str:
    """Describe the error in a response; "" for none."""
    if answer.status not in request.statuses:
        return f"{request.kind}: {answer.status} {answer.body[:300]!r}"
    try:
        if answer.status != 200:
            error = answer.json()["error"]
            if request.code is not None and answer.status == 400 and error["code"] != request.code:
                return f"{request.kind}: {error}"
            if answer.status in BUSY and "retry-after" not in answer.headers:
                return f"{answer.status} without Retry-After"
            return "" if error["message"] else f"{request.kind}: an error without a message"
        return _unfinished(request, answer)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"{request.kind}: {error!r} in {answer.body[-300:]!r}"


def _unfinished(request: HttpRequest, answer: Answer) -> str:
    """Describe a text that did not end; "" for none."""
    if request.api in ("chat", "completions"):
        objects = answer.events() if request.stream else [answer.json()]
        if request.stream and not answer.body.endswith(b"data: [DONE]\n\n"):
            return f"no [DONE]: {answer.body[-200:]!r}"
        ended = [c["index"] for each in objects for c in each["choices"] if c["finish_reason"] is not None]
        return "" if sorted(ended) == list(range(request.n)) else f"ended: {ended} of {request.n}"
    last = answer.events()[-1] if request.stream else answer.json()
    if request.api == "responses":
        last = last["response"] if request.stream else last
        return "" if last["status"] in ("completed", "incomplete") else f"status {last['status']}"
    if request.stream:
        return "" if last["type"] == "message_stop" else f"ends with {last}"
    return "" if last["stop_reason"] else "no stop_reason"
