"""Reading of request bodies in OpenAI's form: /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pymtp.chat import Chat, read_tool_choice, read_tools
from pymtp.chat.sampling_defaults import normalize_sampling
from pymtp.errors import InvalidRequestError
from pymtp.openai.answer_rules import RULE_FIELDS, STRUCTURED_OUTPUTS, AnswerRule, read_rules
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.prompt_only import is_prompt_only
from pymtp.openai.skipped_tools import check_tool_choice, split_tools
from pymtp.samplers import OTHER_NAMES, SAMPLER_RULES
from pymtp.sampling import MAX_COMPLETIONS, MAX_EXACT, SamplingParams
from pymtp.validation import is_whole, read_bool, read_int, replace_all_surrogates

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
_SAME_NAMES += (
    "repetition_penalty",
    "ignore_eos",
    "grammar",
    "draft_tokens",
    "stop_token_ids",
    "cache_salt",
    "cache_prompt",
)
# Where several fields have the same name in SamplingParams, the last of them is used.
_SAMPLING_FIELDS = {"n_predict": "max_tokens"} | {name: name for name in _SAME_NAMES}
_SAMPLING_FIELDS |= {
    "max_completion_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n",
}
_WHOLE_NUMBERS = ("max_tokens", "n", "top_k", "penalty_last_n", "draft_tokens")
# Fields of both URLs that need code of their own.
_OTHER_FIELDS = {"seed", "stop", "logit_bias", "logprobs", "response_format", "timeout"}
_OTHER_FIELDS |= {"stream", "stream_options", "pymtp", STRUCTURED_OUTPUTS, *RULE_FIELDS}
# Names of the thinking budget: first the name in pymtp and in Alibaba's API, then the names in llama.cpp's server.
THINKING_BUDGET_FIELDS = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens")
_OTHER_FIELDS |= {*THINKING_BUDGET_FIELDS}
_SAMPLING_FIELDS |= OTHER_NAMES | {name: name for name in (*SAMPLER_RULES, "samplers")}
_FIELDS_BY_URL = {
    CHAT: {"messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"}
    | {"reasoning_format", "chat_template_kwargs", "continue_final_message", "enable_thinking", "preserve_thinking"}
    | {"thinking", "reasoning", "include_reasoning"},
    TEXT: {"prompt", "echo", "suffix"},
}
# Fields that clients of OpenAI and of llama.cpp send, and that pymtp accepts and ignores.
_IGNORED = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_IGNORED |= {"prompt_cache_retention", "prediction", "verbosity", "id_slot", "timings_per_token"}
_IGNORED |= {"return_progress", "reasoning_in_content"}
# Fields of vLLM and SGLang about their own implementations, and about control tokens, which no text has.
_IGNORED |= {"guided_decoding_backend", "spaces_between_special_tokens"}
# The same in Anthropic's messages and OpenAI's responses.
_IGNORED |= {"context_management", "container", "betas", "inference_geo", "cache_control", "client_metadata"}
_IGNORED |= {"mirostat_tau", "mirostat_eta", "adaptive_decay"}  # they have no effect while their sampler is off
_NOT_CHECKED = {*_IGNORED, "messages"}
# Fields that would change the output and are not supported, each with the values that switch it off,
# which are accepted.
_UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"], []),
    "audio": (),
    "web_search_options": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "no_repeat_ngram_size": (0,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "mirostat": (0,),
    "adaptive_target": (-1,),
    "min_keep": (0, 1),
}
_INSTEAD = {"functions": "tools", "function_call": "tool_choice"}  # the supported fields for the same
# Fields of any API that need no mention if they change nothing: those with another value are refused, or ignored.
UNMENTIONED_FIELDS = frozenset({*_IGNORED, *_UNSUPPORTED_FIELDS})
# The same as _UNSUPPORTED_FIELDS for fields that only a chat has.
_UNSUPPORTED_IN_CHATS: dict[str, tuple[object, ...]] = {"echo": (False,), "add_generation_prompt": (True,)}


def known_fields(url: str) -> set[str]:
    """Return the names of the fields that a request body may have, of those that are refused or ignored too."""
    known = {*_SAMPLING_FIELDS, *_OTHER_FIELDS, *_FIELDS_BY_URL[url], *_IGNORED, *_UNSUPPORTED_FIELDS, "best_of"}
    return known | {*_UNSUPPORTED_IN_CHATS}


def unknown_fields(url: str, body: Mapping[str, Any]) -> list[str]:
    """List the fields of a request body that pymtp does not know, except those that are null, and skipped tools."""
    known = known_fields(url)
    unknown = sorted(name for name, value in body.items() if value is not None and name not in known)
    skipped = split_tools(body.get("tools"))[1] if url == CHAT else []
    return [*unknown, *(tool.label for tool in skipped)]


def read_generate_request(
    url: str, body: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> GenerateRequest:
    """Read a request body.

    url: CHAT or TEXT, the path that the body was sent to.
    defaults: values for fields that the body does not set, by their names in SamplingParams; they replace OpenAI's.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    body = check_texts(body)
    refuse_unsupported(body)
    best_of, n = (_completion_count(name, body.get(name)) for name in ("best_of", "n"))
    if best_of > n:
        raise InvalidRequestError("best_of: not supported if it is more than n", "best_of")
    if url == CHAT:
        continues = bool(body.get("continue_final_message"))
        if not continues:  # vLLM's clients switch add_generation_prompt off to continue a message
            _refuse(_UNSUPPORTED_IN_CHATS, body)
        tools, skipped = split_tools(body.get("tools"))
        check_tool_choice(body.get("tool_choice"), tools, skipped)
        if tools and body.get("function_call") is not None:  # it would not say whether the tools may be called
            raise InvalidRequestError("function_call: not supported beside tools: use tool_choice", "function_call")
        return chat_request(
            body,
            _messages(body),
            defaults,
            tools=tools,
            tool_choice=body.get("tool_choice"),
            variables=template_variables(body),
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            schema=_response_format(body),
            separate_reasoning=body.get("reasoning_format") not in ("none", "raw"),
            continue_final_message=continues,
        )
    if is_prompt_only(body):
        body["max_tokens"] = 1  # the engine generates at least one token, which the answer leaves out
    return GenerateRequest(
        _text_prompt(body),
        read_params(TEXT, body, defaults),
        schema_field=_schema_field(body)[0],
        answer_rule=_answer_rule(body, _response_format(body))[1],
        suffix=body.get("suffix") or "",
        stream=bool(body.get("stream")),
        timeout=body.get("timeout"),
    )


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for a field that would change the output of any API and is not supported."""
    _refuse(_UNSUPPORTED_FIELDS, body)


def _refuse(fields: Mapping[str, tuple[object, ...]], body: Mapping[str, Any]) -> None:
    for name, neutral in fields.items():
        if body.get(name) is not None and body[name] not in neutral:
            instead = f": use {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise InvalidRequestError(f"{name}: not supported{instead}", name)


def chat_request(
    body: Mapping[str, Any],
    messages: Sequence[Any],
    defaults: Mapping[str, Any],
    *,
    tools: Sequence[Any],
    tool_choice: object,
    variables: Mapping[str, Any],
    schema: Mapping[str, Any] | None = None,
    **options: Any,
) -> GenerateRequest:
    """Make the request of a chat in any API.

    body: has `stream`, `timeout` and the sampling fields, by their names in OpenAI's bodies.
    messages, tools, tool_choice: in OpenAI's form.
    variables: the variables of the chat template.
    schema: the JSON schema of the answer, if the API's own field has one.
    options: further fields of GenerateRequest.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    tools = [_with_strict_flag(tool) for tool in tools] if isinstance(tools, list) else tools
    offered = read_tools(tools)
    choice = read_tool_choice(tool_choice, offered)
    schema, rule = _answer_rule(body, schema)
    field, strict = _schema_field(body)
    if rule is not None and offered and choice != "none":
        raise InvalidRequestError(f"{rule.field} cannot be combined with tools", rule.field)
    return GenerateRequest(
        Chat(messages, tools if offered and choice != "none" else None, variables),
        read_params(CHAT, body, defaults),
        tools=offered,
        tool_choice=choice,
        schema=schema,
        strict_schema=strict,
        schema_field=field,
        answer_rule=rule,
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
    return 1 if value is None else read_int(name, _whole(value), 1, MAX_COMPLETIONS)


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


def _with_strict_flag(tool: Any) -> Any:
    """Return a tool whose function has a boolean as `strict`: some clients write it as a text."""
    match tool:
        case {"function": {"strict": str(text)} as function}:
            return {**tool, "function": {**function, "strict": _flag(text)}}
    return tool


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that a body sets for the chat template.

    Several fields may set the same variable. The last of them in this order is used: reasoning_effort, reasoning,
    thinking, a field that has the variable's own name, chat_template_kwargs.
    """
    variables: dict[str, Any] = {}
    reasoning = _reasoning(body)
    for effort in (body.get("reasoning_effort"), reasoning.get("effort")):
        if effort not in (None, *_DEFAULT_EFFORTS):
            variables |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if reasoning.get("enabled") is not None:
        variables["enable_thinking"] = read_bool("reasoning.enabled", reasoning["enabled"])
    elif reasoning.get("max_tokens") is not None:
        variables["enable_thinking"] = True
    if (thinking := _thinking(body)) is not None:
        variables["enable_thinking"] = thinking["type"] != "disabled"
    for name in _FLAGS:
        if body.get(name) is not None:
            variables[name] = read_bool(name, _flag(body[name]))
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, Mapping):
        raise InvalidRequestError("chat_template_kwargs must be an object", "chat_template_kwargs")
    return variables | {name: _flag(value) if name in _FLAGS else value for name, value in own.items()}


_DEFAULT_EFFORTS = ("default", "auto")  # the model's own effort, as if none were given
_FLAGS = ("enable_thinking", "preserve_thinking")


def _flag(value: object) -> object:
    """Return a boolean for the texts true and false: a template would take the text "false" for true."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _thinking(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    thinking = body.get("thinking")
    if thinking is not None and not (isinstance(thinking, Mapping) and isinstance(thinking.get("type"), str)):
        raise InvalidRequestError('thinking must be an object such as {"type": "disabled"}', "thinking")
    return thinking


def _reasoning(body: Mapping[str, Any]) -> Mapping[str, Any]:
    reasoning = body.get("reasoning")
    if reasoning is not None and not isinstance(reasoning, Mapping):
        raise InvalidRequestError('reasoning must be an object such as {"effort": "low"}', "reasoning")
    return reasoning or {}


def excludes_reasoning(body: Mapping[str, Any]) -> bool:
    """Return whether the answer to a body of a chat leaves the thinking out."""
    hidden = body.get("reasoning_format") == "hidden" or body.get("include_reasoning") is False
    return hidden or bool(_reasoning(body).get("exclude"))


def _thinking_budget(url: str, body: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of the field that sets the thinking budget, and the budget.

    The budget is None if there is no limit, which llama.cpp's clients write as -1.
    """
    budgets = {name: body.get(name) for name in THINKING_BUDGET_FIELDS}
    if url == CHAT:
        budgets |= {"thinking": (_thinking(body) or {}).get("budget_tokens")}
        budgets |= {"reasoning.max_tokens": _reasoning(body).get("max_tokens")}
    name = next((name for name, budget in budgets.items() if budget is not None), "thinking_budget")
    return name, None if budgets[name] == -1 else budgets[name]


def read_params(url: str, body: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Return the SamplingParams of a body. defaults: see `read_generate_request`."""
    values = {**_DEFAULTS[url], **defaults}
    values |= {own: body[name] for name, own in _SAMPLING_FIELDS.items() if body.get(name) is not None}
    values |= {name: _whole(values[name]) for name in _WHOLE_NUMBERS if name in values}
    if is_whole(values["max_tokens"], -2, -1):  # no limit, for llama.cpp's server and LM Studio
        values["max_tokens"] = None
    values["grammar"] = values.get("grammar") or None  # SillyTavern and others send "" for no grammar
    if url == TEXT and (schema := _answer_rule(body, _response_format(body))[0]) is not None:
        values |= {"json_schema": schema, "strict_schema": _schema_field(body)[1]}
    if (seed := body.get("seed")) is not None:
        values["seed"] = _seed(_whole(seed))
    if (stop := body.get("stop")) is not None:
        several = [stop] if isinstance(stop, str) else stop
        values["stop"] = [each for each in several if each != ""] if isinstance(several, list) else several
    budget_field, values["thinking_budget"] = _thinking_budget(url, body)
    if bias := body.get("logit_bias"):
        values["logit_bias"] = _logit_bias(bias)
    if (n_top := _logprobs(url, body)) is not None:
        values["logprobs"] = n_top
        if url == TEXT and body.get("echo"):
            values["prompt_logprobs"] = n_top
    try:
        return SamplingParams(**normalize_sampling(values))
    except InvalidRequestError as error:
        names = [name for name, own in _SAMPLING_FIELDS.items() if own == error.param and body.get(name) is not None]
        fallback = budget_field if error.param == "thinking_budget" else error.param
        error.param = [fallback, *names][-1]  # name the field as the body does
        raise


def _logprobs(url: str, body: Mapping[str, Any]) -> Any:
    """Return the number of most likely tokens to report; None for no report of log-probabilities."""
    wanted = body.get("logprobs")
    if url == CHAT or wanted is True:
        return (body.get("top_logprobs") or 0) if wanted else None
    return None if wanted is False else wanted


def _whole(value: Any) -> Any:
    """Return a whole number that is written as 1.0 as an integer, as JSON Schema and JavaScript have it."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT else value


def _seed(seed: object) -> object:
    """Return a seed for SamplingParams; None, for a random seed, if the body has llama.cpp's -1.

    Some clients send other negative seeds: integers are reduced modulo 2**64.
    """
    if seed == -1:
        return None
    if isinstance(seed, float):  # `_whole` has read those that are whole
        raise InvalidRequestError(f"seed={seed!r:.40} must be a whole number, without a point or exponent", "seed")
    return seed % 2**64 if isinstance(seed, int) and not isinstance(seed, bool) else seed


def _logit_bias(bias: Any) -> dict[int, float]:
    """Return the biases of a mapping, or of llama.cpp's list of pairs, by token id."""
    try:
        pairs = bias.items() if isinstance(bias, Mapping) else [(token, value) for token, value in bias]
        if any(isinstance(token, bool) or isinstance(value, str) or value is True for token, value in pairs):
            raise TypeError
        return {int(token): -math.inf if value is False else float(value) for token, value in pairs}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError("logit_bias must map token ids to numbers or false", "logit_bias") from error


def _response_format(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of `response_format`, if the body has one."""
    match body.get("response_format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", **extra}:
            schema = extra.get("schema") or {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            pass
        case _:
            raise InvalidRequestError(
                "response_format must be text, json_object or json_schema with a schema", "response_format"
            )
    if not isinstance(schema, Mapping):
        raise InvalidRequestError("a schema must be an object", "response_format")
    return schema


# The fields that have an object with the schema of the answer, in the three APIs.
_SCHEMA_HOLDERS = (
    ("response_format", "json_schema"),
    ("response_format",),
    ("text", "format"),
    ("output_config", "format"),
)


def _schema_field(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of the field that has the schema of the answer, and whether the schema is strict.

    A keyword that no grammar can express is refused in a strict schema, and left out in others.
    """
    for names in _SCHEMA_HOLDERS:
        holder: Any = body
        for name in names:
            holder = holder.get(name) if isinstance(holder, Mapping) else None
        if isinstance(holder, Mapping) and holder.get("schema") is not None:
            return ".".join((*names, "schema")), _flag(holder.get("strict")) is True
    return next((rule.field for rule in read_rules(body) if rule.kind == "json"), "schema"), False


def _answer_rule(
    body: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, AnswerRule | None]:
    """Return the JSON schema of the answer, or the rule of another kind that the answer follows.

    schema: the schema of the API's own field.

    Raises InvalidRequestError for a malformed rule, and for several.
    """
    rules = read_rules(body)
    if len(rules) + (schema is not None) + (bool(rules) and bool(body.get("grammar"))) > 1:
        others = [] if schema is None else ["the schema of the answer's format"]
        names = [*others, *(rule.field for rule in rules), *(["grammar"] if body.get("grammar") else [])]
        raise InvalidRequestError(f"{' and '.join(names)} cannot be combined: give one of them", rules[-1].field)
    if not rules:
        return schema, None
    (rule,) = rules
    return (rule.value, None) if rule.kind == "json" else (None, rule)
