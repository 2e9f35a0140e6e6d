"""Reading of request bodies in OpenAI's form: /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pymtp.chat import Chat, NamedTool, Tool, ToolChoice, read_tools
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.sampling import MAX_COMPLETIONS, SamplingParams
from pymtp.sampling_defaults import normalize_sampling
from pymtp.validation import read_bool, read_int, replace_all_surrogates

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

# OpenAI's defaults, for fields that neither the request, the server nor the model's file sets. In /v1/completions,
# OpenAI's default of max_tokens is 16.
_DEFAULTS: dict[str, dict[str, Any]] = {
    CHAT: {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": None},
    TEXT: {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": 16},
}
# Fields of OpenAI, llama.cpp and pymtp that SamplingParams has, too, and their names in SamplingParams.
_SAME_NAMES: tuple[str, ...] = (
    "max_tokens",
    "temperature",
    "frequency_penalty",
    "presence_penalty",
    "n",
    "top_p",
    "top_k",
    "min_p",
)
_SAME_NAMES += ("repetition_penalty", "ignore_eos", "grammar", "draft_tokens")
_SAMPLING_FIELDS = {name: name for name in _SAME_NAMES} | {
    "max_completion_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n",
}
# Fields of both URLs that need code of their own.
_OTHER_FIELDS = {"seed", "stop", "logit_bias", "logprobs", "response_format", "json_schema", "timeout"}
_OTHER_FIELDS |= {"stream", "stream_options", "pymtp"}
# Names of the thinking budget: first the name in pymtp and in Alibaba's API, then the names in llama.cpp's server.
THINKING_BUDGET_FIELDS = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens")
_OTHER_FIELDS |= {*THINKING_BUDGET_FIELDS}
_FIELDS_BY_URL = {
    CHAT: {"messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"}
    | {"reasoning_format", "chat_template_kwargs", "continue_final_message", "enable_thinking", "preserve_thinking"}
    | {"thinking"},
    TEXT: {"prompt", "echo"},
}
# Fields that clients of OpenAI and of llama.cpp send, and that pymtp accepts and ignores.
_IGNORED = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_IGNORED |= {"prompt_cache_retention", "prediction", "verbosity", "cache_prompt", "id_slot", "timings_per_token"}
_IGNORED |= {"add_generation_prompt", "return_progress", "reasoning_in_content"}
_NOT_CHECKED = {*_IGNORED, "messages"}
# Fields that would change the output and are not supported, each with the values that switch it off,
# which are accepted.
_UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"], []),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "mirostat": (0,),
    "typical_p": (1,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
}


def unknown_fields(url: str, body: Mapping[str, Any]) -> list[str]:
    """List the fields of a request body that pymtp does not know, except those that are null."""
    known = {*_SAMPLING_FIELDS, *_OTHER_FIELDS, *_FIELDS_BY_URL[url], *_IGNORED, *_UNSUPPORTED_FIELDS, "best_of"}
    return sorted(name for name, value in body.items() if value is not None and name not in known)


def read_generate_request(
    url: str, body: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> GenerateRequest:
    """Read a request body.

    url: CHAT or TEXT, the path that the body was sent to.
    defaults: values for fields that the body does not set, by their names in SamplingParams; they replace OpenAI's.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    body = check_texts(body)
    for name, neutral in _UNSUPPORTED_FIELDS.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise InvalidRequestError(f"{name}: not supported", name)
    best_of, n = (_completion_count(name, body.get(name)) for name in ("best_of", "n"))
    if best_of > n:
        raise InvalidRequestError("best_of: not supported if it is more than n", "best_of")
    if url == CHAT:
        return chat_request(
            body,
            _messages(body),
            defaults,
            tools=body.get("tools") or (),
            tool_choice=body.get("tool_choice"),
            variables=template_variables(body),
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            schema=_schema(body),
            separate_reasoning=body.get("reasoning_format") != "none",
            continue_final_message=bool(body.get("continue_final_message")),
        )
    params = read_params(TEXT, body, defaults)
    return GenerateRequest(_text_prompt(body), params, stream=bool(body.get("stream")), timeout=body.get("timeout"))


def chat_request(
    body: Mapping[str, Any],
    messages: Sequence[Any],
    defaults: Mapping[str, Any],
    *,
    tools: Sequence[Any],
    tool_choice: object,
    variables: Mapping[str, Any],
    **options: Any,
) -> GenerateRequest:
    """Make the request of a chat in any API.

    body: has `stream`, `timeout` and the sampling fields, by their names in OpenAI's bodies.
    messages, tools, tool_choice: in OpenAI's form.
    variables: the variables of the chat template.
    options: further fields of GenerateRequest.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    offered = read_tools(tools)
    choice = _tool_choice(tool_choice, offered)
    return GenerateRequest(
        Chat(messages, tools if offered and choice != "none" else None, variables),
        read_params(CHAT, body, defaults),
        tools=offered,
        tool_choice=choice,
        stream=bool(body.get("stream")),
        timeout=body.get("timeout"),
        **options,
    )


def check_texts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body whose strings have no surrogates: they are replaced.

    Messages are left unchanged, because they may have megabytes: surrogates in the prompt are replaced later.

    Raises InvalidRequestError for a body that is nested too deep.
    """
    try:
        return {name: value if name in _NOT_CHECKED else replace_all_surrogates(value) for name, value in body.items()}
    except RecursionError as error:
        raise InvalidRequestError("the body cannot be read: its lists and objects are nested too deep") from error


def _completion_count(name: str, value: object) -> int:
    return 1 if value is None else read_int(name, value, 1, MAX_COMPLETIONS)  # type: ignore[arg-type] # read_int checks its type


def _messages(body: Mapping[str, Any]) -> Sequence[Any]:
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError(f"messages must be a list, not {type(messages).__name__}", "messages")
    return messages


def text_prompts(body: Mapping[str, Any]) -> list[Any]:
    """Return a list of the prompts of a body of /v1/completions, which has one prompt or a list of prompts."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return list(prompt)
    return [prompt]


def _text_prompt(body: Mapping[str, Any]) -> str | list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)):
        return prompt
    raise InvalidRequestError("prompt must be a string or a list of token ids: only one prompt is allowed", "prompt")


def _tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    names = [tool.name for tool in tools]
    match choice:
        case None:
            return "auto"
        case "auto" | "none":
            return choice
        case "required" if names:
            return "required"
        case "required":
            raise InvalidRequestError("tool_choice is required, and there are no tools to call", "tool_choice")
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return NamedTool(name)
        case {"type": "function", "function": {"name": str(name)}}:
            known = f"which is none of the tools: {', '.join(names)}" if names else "but the request has no tools"
            raise InvalidRequestError(f"tool_choice names {name!r:.80}, {known:.400}", "tool_choice")
    raise InvalidRequestError(
        f"tool_choice={choice!r:.80} must be auto, none, required or a function by its name", "tool_choice"
    )


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that a body sets for the chat template.

    Several fields may set the same variable. The last of them in this order is used: reasoning_effort, thinking, a
    field that has the variable's own name, chat_template_kwargs.
    """
    variables: dict[str, Any] = {}
    effort = body.get("reasoning_effort")
    if effort is not None:
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if (thinking := _thinking(body)) is not None:
        variables["enable_thinking"] = thinking["type"] != "disabled"
    for name in ("enable_thinking", "preserve_thinking"):
        if body.get(name) is not None:
            variables[name] = read_bool(name, body[name])
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, Mapping):
        raise InvalidRequestError("chat_template_kwargs must be an object", "chat_template_kwargs")
    return variables | dict(own)


def _thinking(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    thinking = body.get("thinking")
    if thinking is not None and not (isinstance(thinking, Mapping) and isinstance(thinking.get("type"), str)):
        raise InvalidRequestError('thinking must be an object such as {"type": "disabled"}', "thinking")
    return thinking


def _thinking_budget(url: str, body: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of the field that sets the thinking budget, and the budget.

    The budget is None if there is no limit, which llama.cpp's clients write as -1.
    """
    name, value = next(
        ((name, body[name]) for name in THINKING_BUDGET_FIELDS if body.get(name) is not None), ("thinking", None)
    )
    if value is None and url == CHAT:
        value = (_thinking(body) or {}).get("budget_tokens")
    return name, None if value == -1 else value


def read_params(url: str, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Return the SamplingParams of a body. defaults: see `read_generate_request`."""
    values = {**_DEFAULTS[url], **defaults}
    values |= {own: body[name] for name, own in _SAMPLING_FIELDS.items() if body.get(name) is not None}
    if url == TEXT and (schema := _schema(body)) is not None:
        values["json_schema"] = schema
    if (seed := body.get("seed")) is not None:
        values["seed"] = _seed(seed)
    if (stop := body.get("stop")) is not None:
        several = [stop] if isinstance(stop, str) else stop
        values["stop"] = [each for each in several if each != ""] if isinstance(several, list) else several
    budget_field, values["thinking_budget"] = _thinking_budget(url, body)
    if bias := body.get("logit_bias"):
        values["logit_bias"] = _logit_bias(bias)
    if url == CHAT:
        if body.get("logprobs"):
            values["logprobs"] = body.get("top_logprobs") or 0
    elif body.get("logprobs") is not None:
        values["logprobs"] = body["logprobs"]
    try:
        return SamplingParams(**normalize_sampling(values))
    except InvalidRequestError as error:
        names = (name for name, own in _SAMPLING_FIELDS.items() if own == error.param and body.get(name) is not None)
        fallback = budget_field if error.param == "thinking_budget" else error.param
        error.param = next(names, fallback)  # name the field as the body does
        raise


def _seed(seed: object) -> object:
    """Return a seed for SamplingParams; None, for a random seed, if the body has llama.cpp's -1.

    Some clients send other negative seeds: integers are reduced modulo 2**64.
    """
    if seed == -1:
        return None
    return seed % 2**64 if isinstance(seed, int) and not isinstance(seed, bool) else seed


def _logit_bias(bias: Any) -> dict[int, float]:
    try:
        return {int(token): -math.inf if value is False else float(value) for token, value in bias.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError("logit_bias must map token ids to numbers", "logit_bias") from error


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of the output, if the body has one."""
    match body.get("response_format"):
        case None | {"type": "text"}:
            schema = body.get("json_schema")
        case {"type": "json_object", **extra}:
            schema = extra.get("schema") or {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            pass
        case _:
            raise InvalidRequestError(
                "response_format must be text, json_object or json_schema with a schema", "response_format"
            )
    if schema is not None and not isinstance(schema, Mapping):
        raise InvalidRequestError("a schema must be an object", "response_format")
    return schema
