"""Pydantic models and field types that the APIs share, with the accepted ranges of values.

The models check only the form of a request; pymtp/openai/request_body.py interprets the values.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from pymtp.sampling import MAX_COMPLETIONS, MAX_DRAFTS, MAX_LOGPROBS, MAX_MAGNITUDE
from pymtp.validation import replace_surrogates, shown


def _float_to_int(value: object) -> object:
    # 1.0 is accepted as an integer, as in JSON Schema and JavaScript.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bool_or_text(value: object) -> object:
    return value if isinstance(value, bool) else str(value)


def _replace_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


T = TypeVar("T")
# Validation of a list stops at its first wrong entry, because errors for all entries could take a hundred times the
# memory of the body.
FailFastList = Annotated[list[T], Field(fail_fast=True)]
# Replaces lone surrogates, because pydantic's length limits refuse strings that have them.
VALID_TEXT = BeforeValidator(_replace_surrogates)
FLOAT_AS_INT = BeforeValidator(_float_to_int)  # must follow the limits in Annotated, or the JSON schema would lack them
OnlyFalse = Annotated[Literal[False], BeforeValidator(_bool_or_text)]  # refuses 0, although 0 == False in Python
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
TokenId = Annotated[int, Field(ge=0, lt=2**31), FLOAT_AS_INT]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
# Stop strings are limited, because the engine compares each new token with all of them while all requests wait.
StopString = Annotated[str, StringConstraints(max_length=1000), VALID_TEXT]
StopStrings = Annotated[FailFastList[StopString], Field(max_length=64)]
ThinkingBudget = Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), FLOAT_AS_INT]


def max_pairs(limit: int) -> BeforeValidator:
    """Return a validator that refuses mappings of more than `limit` pairs before pydantic reads the pairs.

    pydantic itself checks the number of pairs last, and would first create an error for each wrong pair.
    """

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            raise PydanticCustomError("too_many", "there must be at most {limit} pairs", {"limit": limit})
        return value

    return BeforeValidator(check)


MAX_BIASES = 1024
# additionalProperties is set, because pydantic's schema would allow names that do not match the pattern.
LogitBias = Annotated[
    dict[TokenKey, Penalty | Literal[False]],
    Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
    max_pairs(MAX_BIASES),
]


Effort = Literal[
    "none", "minimal", "low", "medium", "high", "xhigh", "max"
]  # the same as REASONING_EFFORTS in chat/template.py

# Content is a text or a list of parts. The discriminator makes errors refer only to the form that the client sent.
Text = Annotated[str, Tag("text")]
BY_JSON_TYPE = Discriminator(lambda value: "text" if isinstance(value, str) else "parts")


def _reject_media(part: object) -> object:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image", "input_file", "input_audio", "input_video", "file", "video_url"):
        raise PydanticCustomError("unreadable", "this model reads only text, not {kind}", {"kind": shown(kind)})
    return part


TEXT_ONLY = BeforeValidator(_reject_media)  # for the parts of a message's content: refuses images and other media


class RequestModel(BaseModel):
    """The base of the objects in requests. Types are checked strictly; unknown fields are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class ResponseModel(BaseModel):
    """The base of the objects in responses. Unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(RequestModel):
    include_usage: bool | None = Field(
        None, description="Whether the stream ends with a chunk that has the usage and no choices."
    )


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]
    schema_: dict[str, JsonValue] | None = Field(
        None, alias="schema", description="A JSON schema of the output, as for llama.cpp's server."
    )


class JsonSchema(RequestModel):
    name: str | None = None
    description: str | None = None
    strict: bool | None = Field(None, description="No effect: the output always follows the schema.")
    schema_: dict[str, JsonValue] = Field(alias="schema")


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class PymtpOptions(RequestModel):
    origins: bool | None = Field(
        None, description="Whether each chunk says which of its characters were drafted, and at which draft step."
    )


class SamplingFields(RequestModel):
    """Sampling parameters, which all APIs accept."""

    temperature: Annotated[float, Field(ge=0, le=MAX_MAGNITUDE)] | None = Field(
        None, description="Default: the server's option, else the value of the model's file, else 1."
    )
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="0 and -1: all tokens."
    )
    min_p: Probability | None = None
    seed: Annotated[int, FLOAT_AS_INT] | None = Field(None, description="The seed, modulo 2**64; -1: a random seed.")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=1 / MAX_MAGNITUDE, le=MAX_MAGNITUDE)] | None = None
    logit_bias: LogitBias | None = Field(
        None, description="Maps token ids to biases; false: the token is never sampled."
    )
    grammar: str | None = Field(None, description="A grammar of the output in GBNF.")
    draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFTS), FLOAT_AS_INT] | None = Field(
        None, description="Maximum number of drafts per round; 0: no drafts."
    )
    timeout: Annotated[float, Field(ge=0.1, le=1e9)] | None = Field(
        None, description="Seconds until the request is aborted."
    )
    thinking_budget: ThinkingBudget | None = Field(
        None, description="Maximum number of thinking tokens; 0: no thinking, -1: no limit."
    )
    thinking_budget_tokens: ThinkingBudget | None = Field(None, description="llama.cpp's name of thinking_budget.")
    reasoning_budget: ThinkingBudget | None = Field(None, description="The same as thinking_budget.")
    reasoning_budget_tokens: ThinkingBudget | None = Field(None, description="The same as thinking_budget.")


class ThinkingConfig(RequestModel):
    """Options of thinking, in the form of Anthropic's API."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: ThinkingBudget | None = Field(None, description="The same as thinking_budget.")


class TemplateFields(RequestModel):
    """Variables of the chat template."""

    enable_thinking: bool | None = Field(
        None, description="The same as in chat_template_kwargs, which takes precedence."
    )
    preserve_thinking: bool | None = Field(
        None, description="The same as in chat_template_kwargs, which takes precedence."
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(None, description="Variables of the template.")


class CompletionFields(SamplingFields):
    """Fields that chat completions and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS), FLOAT_AS_INT] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31), FLOAT_AS_INT] | None = None
    stop: StopString | StopStrings | None = None
    repeat_penalty: Annotated[float, Field(ge=1 / MAX_MAGNITUDE, le=MAX_MAGNITUDE)] | None = Field(
        None, description="llama.cpp's name of repetition_penalty."
    )
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Number of last tokens that penalties count; 0: none, -1: all tokens."
    )
    ignore_eos: bool | None = None
    json_schema: dict[str, JsonValue] | None = Field(
        None, description="A JSON schema of the output, as for llama.cpp's server."
    )
    response_format: ResponseFormat | None = None
    pymtp: PymtpOptions | None = None


class PromptTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Prompt tokens that were taken from the prefix cache.")


class CompletionTokensDetails(ResponseModel):
    reasoning_tokens: int = Field(
        description="Thinking tokens, without the thinking tags and the server's message at the end of the budget."
    )


class Usage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DraftingStats(ResponseModel):
    """Statistics of the drafts, summed over all completions, and times in seconds.

    queue_seconds, time_to_first_token and cached_tokens are the values of the first completion. prefill_seconds and
    decode_seconds are the longest times of any completion.
    """

    drafted: int
    accepted: int
    acceptance_rate: float
    accepted_per_position: list[int]
    depths: list[int] = Field(description="Number of drafts of each round.")
    rounds: int
    prefill_seconds: float
    decode_seconds: float
    queue_seconds: float
    time_to_first_token: float
    cached_tokens: int
    tokens_per_second: float
    seed: int


class Origins(ResponseModel):
    """Says which characters of a chunk were drafted.

    origins: lists [field of the delta, number of characters, draft step] in the order of the text; the draft step is 0
        for characters of tokens that were sampled from the target model.
    rounds: lists [number of verified drafts, number of accepted drafts] of each round.
    """

    origins: list[Annotated[list[str | int], Field(min_length=3, max_length=3)]]
    rounds: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
