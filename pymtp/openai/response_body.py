"""Response bodies of /v1/chat/completions and /v1/completions: their types, and functions that build them.

The types also document the answers in the server's OpenAPI schema.
"""

from __future__ import annotations

import codecs
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Annotated, Any, Literal, cast

from typing_extensions import NotRequired, TypedDict

from pymtp.chat import ParsedOutput
from pymtp.engine.logprobs import echo_logprobs
from pymtp.engine.request import Completion
from pymtp.model.model import Model
from pymtp.native.build_info import build_info
from pymtp.openai.generate_request import Output
from pymtp.openai.prompt_only import is_prompt_only, without_text
from pymtp.openai.prompt_texts import tokens_text
from pymtp.openai.request_body import CHAT, excludes_reasoning, text_prompts
from pymtp.openai.timings import PromptProgress, Timings, timings
from pymtp.sampling import TokenLogprobs

OBJECTS = {CHAT: ("chatcmpl-", "chat.completion")}
OutputsByPrompt = Sequence[Sequence[Output]]


class Answer(TypedDict):
    """The base of the objects in answers."""


Answer.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined] # the OpenAPI schema has no other fields


@dataclass(frozen=True)
class About:
    """The description of a field in the OpenAPI schema, as pydantic's Field(description=…), but without pydantic."""

    text: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return handler(schema) | {"description": self.text}


class PromptTokensDetails(Answer):
    cached_tokens: Annotated[int, About("Prompt tokens that were taken from the prefix cache.")]


class CompletionTokensDetails(Answer):
    reasoning_tokens: Annotated[
        int, About("Thinking tokens, without the thinking tags and the server's message at the end of the budget.")
    ]


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DraftingStats(Answer):
    """Statistics of the drafts, summed over all completions, and times in seconds.

    queue_seconds, time_to_first_token and cached_tokens are the values of the first completion. prefill_seconds and
    decode_seconds are the longest times of any completion.
    """

    drafted: int
    accepted: int
    drafted_by_text: Annotated[int, About("Those of `drafted` that came from the text.")]
    accepted_by_text: Annotated[int, About("Those of `accepted` that came from the text.")]
    acceptance_rate: float
    drafted_per_position: Annotated[list[int], About("Verified drafts of the head, by position in the draft.")]
    accepted_per_position: Annotated[list[int], About("Accepted drafts of the head, by position in the draft.")]
    depths: Annotated[list[int], About("Number of drafts of each round.")]
    rounds: int
    prefill_seconds: float
    decode_seconds: float
    queue_seconds: float
    time_to_first_token: float
    cached_tokens: int
    tokens_per_second: float
    seed: int


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob]


class ChatFunctionCall(Answer):
    name: str
    arguments: str


class ChatToolCall(Answer):
    id: str
    type: Literal["function"]
    function: ChatFunctionCall


class ChatMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: NotRequired[None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    tool_calls: NotRequired[list[ChatToolCall] | None]


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatLogprobs | None


# in another form, because a class would mangle the name
_Verbose = TypedDict("_Verbose", {"__verbose": NotRequired[dict[str, Any]]})


class ChatCompletion(Answer, _Verbose):
    id: str
    object: Literal["chat.completion"]
    created: Annotated[int, About("Seconds since 1970.")]
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    pymtp: DraftingStats
    timings: Annotated[Timings, About("The times of the first completion, under the names of llama.cpp's server.")]


class DeltaFunctionCall(Answer):
    name: NotRequired[str | None]
    arguments: str


class DeltaToolCall(Answer):
    index: int
    id: NotRequired[str | None]
    type: NotRequired[Literal["function"] | None]
    function: DeltaFunctionCall


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None


class TextCompletion(Answer):
    """A whole completion, or a chunk of a stream: a chunk has only new text, and only the last chunk has `usage`."""

    id: str
    object: Literal["text_completion"]
    created: Annotated[int, About("Seconds since 1970.")]
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    pymtp: NotRequired[DraftingStats | None]
    timings: NotRequired[Timings | None]
    prompt_progress: NotRequired[PromptProgress | None]


class ResponseHead(TypedDict):
    """The fields with which each response, and each chunk of a stream, begins."""

    id: str
    object: Any
    created: int
    model: str
    system_fingerprint: str


@cache
def fingerprint() -> str:
    """Return the system_fingerprint, which names the versions of pymtp and llama.cpp."""
    info = build_info()
    return f"pymtp-{info['pymtp']}-{info['llama_cpp_commit'][:7]}"


def response_head(url: str, model_name: str) -> ResponseHead:
    """Return the fields with which each response, and each chunk of a stream, begins."""
    prefix, kind = OBJECTS.get(url, ("cmpl-", "text_completion"))
    return {
        "id": prefix + uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": model_name,
        "system_fingerprint": fingerprint(),
    }


def call_id() -> str:
    """Make a new id for a tool call. The client sends it back with the tool's result."""
    return f"call_{uuid.uuid4().hex[:24]}"


def build_response(
    url: str, body: Mapping[str, Any], outputs_by_prompt: OutputsByPrompt, model: Model, model_name: str
) -> ChatCompletion | TextCompletion:
    """Build the body of a response.

    body: the body of the request.
    outputs_by_prompt: the outputs of each prompt; a chat has one prompt.
    """
    if url != CHAT and is_prompt_only(body):
        outputs_by_prompt = [[without_text(output) for output in outputs] for outputs in outputs_by_prompt]
    outputs = [output for outputs in outputs_by_prompt for output in outputs]
    head = response_head(url, body.get("model") or model_name)
    used = usage([[output.completion for output in outputs] for outputs in outputs_by_prompt])
    stats = draft_stats([output.completion for output in outputs])
    times = timings(outputs[0].completion.stats)
    if url == CHAT:
        shows_reasoning = not excludes_reasoning(body)
        choices = [_chat_choice(i, output, model, shows_reasoning) for i, output in enumerate(outputs)]
        answer = {**head, "choices": choices, "usage": used, "pymtp": stats, "timings": times}
        if body.get("verbose"):
            answer["__verbose"] = _verbose(outputs[0].completion, model)
        return cast(ChatCompletion, answer)
    prompts = text_prompts(body) if body.get("echo") else [""] * len(outputs_by_prompt)
    echoes = [
        prompt_text(prompt, model) for prompt, outputs in zip(prompts, outputs_by_prompt, strict=True) for _ in outputs
    ]
    texts = [_text_choice(i, output.completion, model, echoes[i]) for i, output in enumerate(outputs)]
    return {**head, "choices": texts, "usage": used, "pymtp": stats, "timings": times}  # type: ignore[misc, return-value]


def _verbose(done: Completion, model: Model) -> dict[str, Any]:
    """Return the prompt and the whole text of a completion, under the names of llama.cpp's server."""
    return {
        "prompt": tokens_text(done.prompt_token_ids, model),
        "content": done.text,
        "tokens_evaluated": len(done.prompt_token_ids),
        "tokens_predicted": len(done.token_ids),
    }


def usage(completions_by_prompt: Sequence[Sequence[Completion]]) -> Usage:
    """Return a response's "usage": the tokens of the prompts, each prompt counted once, and of all completions."""
    n_prompt = sum(len(completions[0].prompt_token_ids) for completions in completions_by_prompt)
    n_output = sum(len(one.token_ids) for completions in completions_by_prompt for one in completions)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "prompt_tokens_details": {
            "cached_tokens": sum(completions[0].stats.cached_tokens for completions in completions_by_prompt)
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(
                one.stats.thinking_tokens for completions in completions_by_prompt for one in completions
            )
        },
    }


def draft_stats(completions: Sequence[Completion]) -> DraftingStats:
    """Return the figures of multi-token prediction for all completions of a request together.

    The times in the queue and to the first token are those of the first completion. Each other time is the longest of
    all completions.
    """
    stats = [completion.stats for completion in completions]
    drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
    decode_seconds = max(one.decode_seconds for one in stats)
    decoded = sum(max(0, one.completion_tokens - 1) for one in stats)
    return {
        "drafted": drafted,
        "accepted": accepted,
        "drafted_by_text": sum(one.drafted_by_text for one in stats),
        "accepted_by_text": sum(one.accepted_by_text for one in stats),
        "acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
        "drafted_per_position": _sums([one.drafted_per_position for one in stats]),
        "accepted_per_position": _sums([one.accepted_per_position for one in stats]),
        "depths": [depth for one in stats for depth in one.depths],
        "rounds": sum(one.rounds for one in stats),
        "prefill_seconds": round(max(one.prefill_seconds for one in stats), 6),
        "decode_seconds": round(decode_seconds, 6),
        "queue_seconds": round(stats[0].queue_seconds, 6),
        "time_to_first_token": round(stats[0].time_to_first_token, 6),
        "cached_tokens": stats[0].cached_tokens,
        "tokens_per_second": round(decoded / decode_seconds, 2) if decode_seconds else 0.0,
        "seed": completions[0].seed,
    }


def _sums(counts_per_position: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip_longest(*counts_per_position, fillvalue=0)]


def _chat_choice(i: int, output: Output, model: Model, shows_reasoning: bool) -> ChatChoice:
    completion = output.completion
    parsed = output.parsed or ParsedOutput(None, completion.text, ())
    return {
        "index": i,
        "message": response_message(parsed if shows_reasoning else replace(parsed, reasoning=None)),
        "finish_reason": output.finish_reason,  # type: ignore[typeddict-item] # cancelled only while closing
        "logprobs": None if completion.logprobs is None else chat_logprobs(completion.logprobs, model),
    }


def response_message(parsed: ParsedOutput) -> ChatMessage:
    """Return the assistant's message in a response.

    A tool call that was cut off is its last call, with the arguments that were generated, as in a stream.
    """
    calls = parsed.tool_calls if parsed.unfinished_call is None else (*parsed.tool_calls, parsed.unfinished_call)
    message: ChatMessage = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.content is None and not calls:
        message["content"] = ""
    if parsed.reasoning is not None:
        message["reasoning_content"] = message["reasoning"] = parsed.reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def chat_logprobs(logprobs: Iterable[TokenLogprobs], model: Model) -> ChatLogprobs:
    """Return the "logprobs" of a chat's choice: tokens with their log-probabilities."""

    def token(number: int, logprob: float) -> TopLogprob:
        data = model.token_bytes(number)
        return {"token": data.decode("utf-8", "replace"), "logprob": _json_logprob(logprob), "bytes": list(data)}

    return {
        "content": [
            {**token(one.token_id, one.logprob), "top_logprobs": [token(*top) for top in one.top]} for one in logprobs
        ]
    }


def prompt_text(prompt: str | list[int], model: Model) -> str:
    """Return a prompt as text, for a response that repeats it (`echo`)."""
    return prompt if isinstance(prompt, str) else model.detokenize(prompt, special=True)


def _text_choice(i: int, completion: Completion, model: Model, echo: str) -> CompletionChoice:
    logprobs = None
    if completion.logprobs is not None:
        of_prompt = echo_logprobs(completion.prompt_token_ids, completion.prompt_logprobs)
        logprobs = text_logprobs(of_prompt, model, TextOffsets(special=True))
        add_logprobs(logprobs, text_logprobs(completion.logprobs, model, TextOffsets(len(echo))))
    return {
        "index": i,
        "text": echo + completion.text,
        "finish_reason": completion.finish_reason,  # type: ignore[typeddict-item] # see _chat_choice
        "logprobs": logprobs,
    }


class TextOffsets:
    """A counter of a text's characters by its tokens. A character of several tokens belongs to the last of them."""

    def __init__(self, start: int = 0, *, special: bool = False) -> None:
        """start: the number of characters before the first token. special: whether the text has control tokens."""
        self._at, self._special = start, special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: int, model: Model) -> int:
        """Return the number of characters before the next token."""
        start = self._at
        self._at += len(self._decoder.decode(model.token_bytes(token, special=self._special)))
        return start


def add_logprobs(logprobs: CompletionLogprobs, more: CompletionLogprobs) -> None:
    """Add the tokens of `more` at the end."""
    logprobs["tokens"] += more["tokens"]
    logprobs["token_logprobs"] += more["token_logprobs"]
    logprobs["top_logprobs"] += more["top_logprobs"]
    logprobs["text_offset"] += more["text_offset"]


def text_logprobs(logprobs: Iterable[TokenLogprobs], model: Model, offsets: TextOffsets) -> CompletionLogprobs:
    """Return the "logprobs" of a choice of /v1/completions. A token whose log-probability is NaN has null.

    offsets: counts the characters of the choice's text, from the first token on.
    """
    found: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in logprobs:
        found["tokens"].append(_token_text(one.token_id, model))
        known = not math.isnan(one.logprob)
        top: dict[str, float] = {}
        for token, logprob in one.top:  # several tokens may have the same text: the likeliest stays
            top.setdefault(_token_text(token, model), _json_logprob(logprob))
        found["token_logprobs"].append(_json_logprob(one.logprob) if known else None)
        found["top_logprobs"].append(top if known else None)
        found["text_offset"].append(offsets.take(one.token_id, model))
    return found


def _token_text(token: int, model: Model) -> str:
    """Return a token's text as OpenAI's completions have it; a part of a character is named by its bytes."""
    data = model.token_bytes(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"bytes:{repr(data)[2:-1]}"  # such as bytes:\xe2\x80


def _json_logprob(logprob: float) -> float:
    """Return a log-probability for JSON, which has no infinity: OpenAI's API writes -9999 instead."""
    return max(logprob, -9999.0)
