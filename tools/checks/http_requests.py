"""Random HTTP requests of all kinds for a server, and checks of their responses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from random_requests import GRAMMARS

from pymtp.chat import Chat

Api = Literal["chat", "completions", "responses", "messages"]
PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
SEEDED = ("chat", "completions")  # the other APIs have no seed and none of the other parameters of sampling
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
    prompt, params: those with which an LLM generates the same text; None if it cannot.
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
    prompt: str | Chat | None = None
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def sent(self) -> dict[str, Any]:
        """Return the keywords with which a client of httpx sends the request."""
        headers = {"Content-Type": "application/json", **self.headers}
        return {"method": self.method, "url": self.path, "content": self.body, "headers": headers}


class HttpRequestGenerator:
    """Makes random HTTP requests."""

    def __init__(self, numbers: random.Random, limits: Limits, apis: Sequence[Api], texts: Sequence[str]) -> None:
        """Set up the generator. apis: the APIs that the server has."""
        self._numbers, self._limits, self._apis, self._texts = numbers, limits, apis, texts

    def good(self, most: int = 24) -> HttpRequest:
        """Return a valid request. It is answered unless the queue is full. most: the maximum of tokens."""
        numbers = self._numbers
        api, stream, text = numbers.choice(self._apis), numbers.random() < 0.5, self._text()
        params: dict[str, Any] = {
            "max_tokens": numbers.randint(1, most),
            "temperature": numbers.choice((0.0, 0.7, 1.0)),
        }
        if api in SEEDED:
            params |= self._sampling()
        elif api == "responses":
            params["max_tokens"] = max(16, params["max_tokens"])
        content = self._content(api, text, params) | {"stream": stream}
        if stream and api in SEEDED:
            content["stream_options"] = {"include_usage": True}
        prompt: str | Chat | None = text
        if api != "completions":
            thinking = {"enable_thinking": False} if api == "messages" else {}  # the default of the API
            prompt = Chat([{"role": "user", "content": text}], chat_template_kwargs=thinking)
        if api != "completions" and "grammar" not in params and "json_schema" not in params and numbers.random() < 0.2:
            content, prompt = content | self._tools(api), None
        if api not in SEEDED and params["temperature"]:
            prompt = None
        n = params.get("n", 1)
        return self._request("answered", api, content, (200, *BUSY), stream=stream, n=n, prompt=prompt, params=params)

    def refused(self) -> HttpRequest:
        """Return a request that is over a limit or invalid."""
        numbers, api = self._numbers, self._numbers.choice(self._apis)
        key, short = {"Authorization": f"Bearer {self._limits.key}"}, self._short(api)
        body = json.dumps(short).encode()
        match numbers.randrange(6):
            case 0:
                large = short | {"user": "a" * (self._limits.max_body + numbers.randrange(2**18))}
                return self._request("body too large", api, large, (413,))
            case 1:
                content = self._content(api, "word " * (4 * self._limits.n_ctx), {"max_tokens": 16})
                code = None if api == "messages" else "context_length_exceeded"
                return self._request("prompt too long", api, content, (400, *BUSY), code=code)
            case 2:
                wrong = numbers.choice(({"Authorization": "Bearer wrong"}, {"Authorization": ""}))
                return self._request("wrong key", api, short, (401,), headers=wrong)
            case 3:
                torn = (body[: numbers.randrange(len(body))], b"\xff" + body, b"[" * 100_000, b"7")
                return self._request("no JSON", api, numbers.choice(torn), (400,))
            case 4:
                odd = numbers.choice(({"temperature": "hot"}, {"temperature": -1}, {"stream": 7}, {"top_p": 2.0}))
                return self._request("odd value", api, short | odd, (400,))
        method, path, status = numbers.choice((("POST", "/v1/nothing", 404), ("PUT", PATHS["chat"], 405)))
        return HttpRequest("no such thing", path, b"{}", (status,), method=method, headers=key)

    def _text(self) -> str:
        text = self._numbers.choice(self._texts)
        start = self._numbers.randrange(max(1, len(text) - 300))
        return text[start : start + self._numbers.randint(1, 300)]

    def _sampling(self) -> dict[str, Any]:
        numbers = self._numbers
        found: dict[str, Any] = {
            "temperature": numbers.choice((0.0, 0.3, 0.7, 1.0, 1.5)),
            "seed": numbers.randrange(2**63),
            "top_k": numbers.choice((0, 1, 40)),
            "top_p": numbers.choice((0.5, 0.95, 1.0)),
            "min_p": numbers.choice((0.0, 0.05)),
            "n": numbers.choice((1, 1, 1, 2, 3)),
            "ignore_eos": numbers.random() < 0.5,
        }
        if numbers.random() < 0.5:
            found["draft_tokens"] = numbers.randint(0, 7)
        if numbers.random() < 0.3:
            found |= {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
        if numbers.random() < 0.2:
            found["logit_bias"] = {"10": -2.0, "32": 0.5}
        if numbers.random() < 0.3:
            found["stop"] = numbers.choice(("return", ["\n\n", "self"], [" ="]))
        return found | (numbers.choice(GRAMMARS[:3]) if numbers.random() < 0.1 else {})

    def _content(self, api: Api, text: str, params: dict[str, Any]) -> dict[str, Any]:
        content = {"model": "m", **params}
        if api == "completions":
            return content | {"prompt": text}
        if api == "responses":
            # only few are stored: a thousand stored responses take megabytes, which is no leak
            content |= {"max_output_tokens": content.pop("max_tokens"), "store": self._numbers.random() < 0.1}
            return content | {"input": text}
        return content | {"messages": [{"role": "user", "content": text}]}

    def _tools(self, api: Api) -> dict[str, Any]:
        about = {"name": "weather", "description": "Tells the weather."}
        if api == "messages":
            return {"tools": [about | {"input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
        if api == "responses":
            return {"tools": [about | {"type": "function", "parameters": SCHEMA}], "tool_choice": "required"}
        tools = [{"type": "function", "function": about | {"parameters": SCHEMA}}]
        return {"tools": tools, "tool_choice": self._numbers.choice(("auto", "required"))}

    def _short(self, api: Api) -> dict[str, Any]:
        """Return the content of a request for a few tokens."""
        return self._content(api, self._text(), {"max_tokens": 16, "temperature": 0.0})

    def _request(self, kind: str, api: Api, content: Any, statuses: tuple[int, ...], **more: Any) -> HttpRequest:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {self._limits.key}"} | more.pop("headers", {})
        return HttpRequest(kind, PATHS[api], body, statuses, api, headers=headers, **more)


def events(answer: httpx.Response) -> list[Any]:
    """Parse the `data:` lines of a stream, without [DONE]. Raises ValueError for an incomplete stream."""
    lines = answer.content.decode().split("\n")
    if lines[-1]:
        raise ValueError(f"the stream ends within a line: {lines[-1][-200:]!r}")
    found = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(data) for data in found if data != "[DONE]"]


def find_problem(request: HttpRequest, answer: httpx.Response) -> str:
    """Describe the error in a response; "" for none."""
    if answer.status_code not in request.statuses:
        return f"{request.kind}: {answer.status_code} {answer.content[:300]!r}"
    try:
        if answer.status_code != 200:
            error = answer.json()["error"]
            if request.code is not None and answer.status_code == 400 and error["code"] != request.code:
                return f"{request.kind}: {error}"
            if answer.status_code in BUSY and "retry-after" not in answer.headers:
                return f"{answer.status_code} without Retry-After"
            return "" if error["message"] else f"{request.kind}: an error without a message"
        return _unfinished(request, answer)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"{request.kind}: {error!r} in {answer.content[-300:]!r}"


def _unfinished(request: HttpRequest, answer: httpx.Response) -> str:
    """Describe a text that did not end; "" for none."""
    if request.stream and request.api in SEEDED and not answer.content.endswith(b"data: [DONE]\n\n"):
        return f"no [DONE]: {answer.content[-200:]!r}"
    last = (events(answer) if request.stream else [answer.json()])[-1]
    if request.stream and request.api == "messages" and last["type"] != "message_stop":
        return f"ends with {last}"
    reasons = Received.of(request, answer).reasons
    return "" if sorted(reasons) == list(range(request.n)) else f"ended: {reasons} of {request.n}"


@dataclass
class Received:
    """The texts in a response with their thinking, and the reasons why they ended, by the number of the completion.

    tokens: of all completions; None for an abandoned request.
    """

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    tokens: int | None = None

    @classmethod
    def of(cls, request: HttpRequest, answer: httpx.Response) -> Received:
        """Read a response, or the whole lines of an abandoned stream. Raises LookupError or ValueError."""
        got = cls()
        for each in events(answer) if request.stream else [answer.json()]:
            {"responses": got._add_response, "messages": got._add_message}.get(request.api, got._add_choices)(each)
        return got

    def _add(self, text: str | None, i: int = 0) -> None:
        self.texts[i] = self.texts.get(i, "") + (text or "")

    def _add_choices(self, each: dict[str, Any]) -> None:
        for choice in each["choices"]:
            message = choice.get("delta") or choice.get("message") or choice
            for name in ("reasoning_content", "content", "text"):
                self._add(message.get(name), choice["index"])
            if choice["finish_reason"] is not None:
                self.reasons[choice["index"]] = choice["finish_reason"]
        if each.get("usage"):
            self.tokens = each["usage"]["completion_tokens"]

    def _add_response(self, each: dict[str, Any]) -> None:
        if each.get("type") in ("response.reasoning_text.delta", "response.output_text.delta"):
            self._add(each["delta"])
        whole = each.get("response", {}) if "type" in each else each
        if whole.get("status") in ("completed", "incomplete"):
            self.texts[0] = "".join(part["text"] for item in whole["output"] for part in item.get("content", ()))
            self.reasons[0] = "stop" if whole["status"] == "completed" else "length"
            self.tokens = whole["usage"]["output_tokens"]

    def _add_message(self, each: dict[str, Any]) -> None:
        if each["type"] == "content_block_delta":
            self._add(each["delta"].get("text"))
        elif each["type"] == "message":
            self._add("".join(block.get("text", "") for block in each["content"]))
        told = each if each["type"] == "message" else each.get("delta", {})
        if told.get("stop_reason"):
            self.reasons[0] = {"max_tokens": "length"}.get(told["stop_reason"], "stop")
            self.tokens = each["usage"]["output_tokens"]
