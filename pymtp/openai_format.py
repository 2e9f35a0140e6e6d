"""Requests and answers as OpenAI's API has them: bodies of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.chat import Chat
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.llm_prefixes import Prompt
from pymtp.model import Model
from pymtp.sampling import SamplingParams, TokenLogprobs

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

# OpenAI's defaults; max_tokens of /v1/completions is 16 there
_DEFAULTS: dict[str, dict[str, Any]] = {
    CHAT: {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": None},
    TEXT: {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": 16},
}
# what means the same here and there, and what only this package has
_SAME = ("max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "n")
_OWN = ("top_k", "min_p", "repetition_penalty", "ignore_eos", "grammar", "draft_tokens")
# what changes nothing here
_IGNORED = {"model", "user", "metadata", "store", "service_tier", "parallel_tool_calls", "max_completion_tokens"}


def read_prompt(url: str, body: Mapping[str, Any]) -> Prompt:
    """The prompt of a body. Raises InvalidRequestError."""
    if url == CHAT:
        messages = body.get("messages")
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise InvalidRequestError(f"messages must be a list, not {type(messages).__name__}")
        return Chat(messages)
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)):
        return prompt
    raise InvalidRequestError("prompt must be a string or a list of token ids: one prompt a request")


def read_params(url: str, body: Mapping[str, Any]) -> SamplingParams:
    """The sampling of a body. Raises InvalidRequestError for what is out of range, and what cannot be done."""
    known = {"messages", "prompt", "logit_bias", "response_format", "logprobs", "top_logprobs", "stream"}
    given = {name for name, value in body.items() if value is not None}
    unknown = sorted(given - known - _IGNORED - {*_SAME, *_OWN})
    if unknown:
        raise InvalidRequestError(f"{', '.join(unknown)}: not supported")
    if body.get("stream"):
        raise InvalidRequestError("stream: a batch has no streams")
    values = dict(_DEFAULTS[url])
    values |= {name: body[name] for name in (*_SAME, *_OWN) if body.get(name) is not None}
    if body.get("max_completion_tokens") is not None:
        values["max_tokens"] = body["max_completion_tokens"]
    bias = body.get("logit_bias")
    if bias:
        try:
            values["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError("logit_bias must map token ids to numbers") from error
    values |= _response_format(body.get("response_format"))
    if url == CHAT:
        if body.get("logprobs"):
            values["logprobs"] = body.get("top_logprobs") or 0
    elif body.get("logprobs") is not None:
        values["logprobs"] = body["logprobs"]
    return SamplingParams(**values)


def _response_format(wanted: object) -> dict[str, Any]:
    match wanted:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
    raise InvalidRequestError("response_format must be text, json_object or json_schema with a schema")


def answer(url: str, body: Mapping[str, Any], done: Completion, model: Model) -> dict[str, Any]:
    """The body of an answer."""
    each = (done, *done.others)
    n_prompt = len(done.prompt_token_ids)
    n_written = sum(len(one.token_ids) for one in each)
    choice = _chat_choice if url == CHAT else _text_choice
    return {
        "id": ("chatcmpl-" if url == CHAT else "cmpl-") + uuid.uuid4().hex,
        "object": "chat.completion" if url == CHAT else "text_completion",
        "created": int(time.time()),
        "model": body.get("model") or model.path.name,
        "choices": [choice(i, one, model) for i, one in enumerate(each)],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_written,
            "total_tokens": n_prompt + n_written,
            "prompt_tokens_details": {"cached_tokens": done.stats.cached_tokens},
        },
    }


def _chat_choice(i: int, one: Completion, model: Model) -> dict[str, Any]:
    logprobs = None
    if one.logprobs is not None:
        logprobs = {"content": [_chat_logprob(each, model) for each in one.logprobs]}
    message = {"role": "assistant", "content": one.text}
    return {"index": i, "message": message, "finish_reason": one.finish_reason, "logprobs": logprobs}


def _chat_logprob(each: TokenLogprobs, model: Model) -> dict[str, Any]:
    def token(number: int, logprob: float) -> dict[str, Any]:
        data = model.token_bytes(number)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    return token(each.token_id, each.logprob) | {"top_logprobs": [token(*top) for top in each.top]}


def _text_choice(i: int, one: Completion, model: Model) -> dict[str, Any]:
    logprobs = None
    if one.logprobs is not None:

        def text(number: int) -> str:
            return model.token_bytes(number).decode("utf-8", "replace")

        logprobs = {
            "tokens": [text(each.token_id) for each in one.logprobs],
            "token_logprobs": [each.logprob for each in one.logprobs],
            "top_logprobs": [{text(number): logprob for number, logprob in each.top} for each in one.logprobs],
        }
    return {"index": i, "text": one.text, "finish_reason": one.finish_reason, "logprobs": logprobs}
