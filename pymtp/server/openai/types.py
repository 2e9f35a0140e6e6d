"""What requests of OpenAI's form share, and what their answers do: types with the ranges that are taken.

The types say what a request may look like. What a request means is read by pymtp/openai_format.py.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from pymtp.sampling import MAX_COMPLETIONS, MAX_DRAFTS, MAX_LOGPROBS, MOST
from pymtp.validation import shown, whole_text


def _whole(value: object) -> object:
    # to JSON Schema, and to clients written in JavaScript, 1.0 is a whole number
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: object) -> object:
    return value if isinstance(value, bool) else str(value)


def _whole_text(value: object) -> object:
    return whole_text(value) if isinstance(value, str) else value


T = TypeVar("T")
# of a body: what is wrong is said of the first one only. To say it of all takes a hundred times the body's memory
ListOf = Annotated[list[T], Field(fail_fast=True)]
WHOLE_TEXT = BeforeValidator(_whole_text)  # of texts with limits: pydantic's refuse half a character
WHOLE = BeforeValidator(_whole)  # behind the limits: those before it are in the JSON schema
No = Annotated[Literal[False], BeforeValidator(_truth)]  # to Python, 0 is False
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-MOST, le=MOST)]
TokenId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
# each token is looked at with all of them, by the thread that all requests wait for
StopText = Annotated[str, StringConstraints(max_length=1000), WHOLE_TEXT]
Stops = Annotated[ListOf[StopText], Field(max_length=64)]
Budget = Annotated[int, Field(ge=-1, lt=2**31), WHOLE]  # of thinking
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE]


def few(most: int) -> BeforeValidator:
    """Refuses larger mappings before pydantic reads them: it would make an error of each wrong pair, and only then
    look at their number."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "there must be at most {most} pairs", {"most": most})
        return value

    return BeforeValidator(check)


MOST_BIASES = 1024
# pydantic's schema of a mapping lets other names through
LogitBias = Annotated[
    dict[TokenKey, Penalty | Literal[False]],
    Field(max_length=MOST_BIASES, json_schema_extra={"additionalProperties": False}),
    few(MOST_BIASES),
]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # as pymtp/chat/efforts.py has them

# text, or a list of parts: what is wrong is said of the form that came
Text = Annotated[str, Tag("text")]
BY_FORM = Discriminator(lambda value: "text" if isinstance(value, str) else "parts")


def _readable(part: object) -> object:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image", "input_file", "input_audio", "input_video", "file", "video_url"):
        raise PydanticCustomError("unreadable", "this model reads text, and no {kind}", {"kind": shown(kind)})
    return part


READABLE = BeforeValidator(_readable)  # a part of what a message says


class Body(BaseModel):
    """An object of a request. Numbers in strings and the like are refused, names that nobody knows are not."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Out(BaseModel):
    """An object of an answer: it has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="A last chunk without choices has the usage.")


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema", description="As llama.cpp's server takes it.")


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    strict: bool | None = Field(None, description="A schema is always held to.")
    schema_: dict[str, JsonValue] = Field(alias="schema")


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class PymtpOptions(Body):
    origins: bool | None = Field(None, description="Each chunk tells which characters were drafted, and at which step.")


class Choosing(Body):
    """How tokens are chosen, whatever API asks."""

    temperature: Annotated[float, Field(ge=0, le=MOST)] | None = Field(
        None, description="Where it is left out: the server's own, else that of the model's file, else 1."
    )
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), WHOLE] | None = Field(None, description="0 and -1: all tokens.")
    min_p: Probability | None = None
    seed: Annotated[int, WHOLE] | None = Field(None, description="Modulo 2**64. -1: any.")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=1 / MOST, le=MOST)] | None = None
    logit_bias: LogitBias | None = Field(None, description="false: never this token.")
    grammar: str | None = Field(None, description="GBNF.")
    draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFTS), WHOLE] | None = Field(
        None, description="0: without drafts."
    )
    timeout: Annotated[float, Field(ge=0.1, le=1e9)] | None = Field(
        None, description="Seconds that the answer may take."
    )
    thinking_budget: Budget | None = Field(None, description="Most tokens of thinking, 0 for none, -1 for any number.")
    thinking_budget_tokens: Budget | None = Field(None, description="llama.cpp's name.")
    reasoning_budget: Budget | None = Field(None, description="The same.")
    reasoning_budget_tokens: Budget | None = Field(None, description="The same.")


class Thinking(Body):
    """As Anthropic's API has it."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Budget | None = Field(None, description="As thinking_budget.")


class Templating(Body):
    """What a chat gives its template."""

    enable_thinking: bool | None = Field(None, description="As in chat_template_kwargs, which wins.")
    preserve_thinking: bool | None = Field(None, description="As in chat_template_kwargs, which wins.")
    chat_template_kwargs: dict[str, JsonValue] | None = Field(None, description="Variables of the template.")


class Sampling(Choosing):
    """How tokens are chosen, when a text ends, and how it is handed out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS), WHOLE] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    stop: StopText | Stops | None = None
    repeat_penalty: Annotated[float, Field(ge=1 / MOST, le=MOST)] | None = Field(None, description="llama.cpp's name.")
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31), WHOLE] | None = Field(None, description="0: none, -1: all.")
    ignore_eos: bool | None = None
    json_schema: dict[str, JsonValue] | None = Field(None, description="As llama.cpp's server takes it.")
    response_format: ResponseFormat | None = None
    pymtp: PymtpOptions | None = None


class PromptTokensDetails(Out):
    cached_tokens: int = Field(description="Of the prompt, held already and not read again.")


class CompletionTokensDetails(Out):
    reasoning_tokens: int = Field(description="Of the thinking, without its tags and a closing message.")


class Usage(Out):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Drafting(Out):
    """What multi-token prediction brought, and the times. Seconds; of the first of several texts, sums of drafts."""

    drafted: int
    accepted: int
    acceptance_rate: float
    accepted_per_position: list[int]
    depths: list[int] = Field(description="Drafts of each round.")
    rounds: int
    prefill_seconds: float
    decode_seconds: float
    queue_seconds: float
    time_to_first_token: float
    cached_tokens: int
    tokens_per_second: float
    seed: int


class Origins(Out):
    """Where the characters of a chunk come from. origins: of a field so many characters, and the step that drafted
    them, 0 for the target. rounds: of each round the drafts that were verified, and that were accepted."""

    origins: list[Annotated[list[str | int], Field(min_length=3, max_length=3)]]
    rounds: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
