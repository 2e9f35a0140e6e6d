"""Pydantic models and field types that the APIs share, with the accepted ranges of values.

The models check only the form of a request; pymtp/openai/request_body.py interprets the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from pymtp.openai.response_body import Answer, ChatLogprobs, DeltaToolCall, DraftingStats, Usage
from pymtp.openai.timings import PromptProgress, Timings
from pymtp.samplers.values import MAX_BREAKER, MAX_BREAKERS
from pymtp.sampling import MAX_COMPLETIONS, MAX_DRAFTS, MAX_EXACT, MAX_LOGPROBS, MAX_MAGNITUDE, MAX_SALT
from pymtp.validation import replace_surrogates, shown


def _float_to_int(value: object) -> object:
    # 1.0 is accepted as an integer, as in JSON Schema and JavaScript.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse_rounded(value: object) -> object:
    if isinstance(value, float) and abs(value) > MAX_EXACT:
        raise PydanticCustomError("seed_rounded", "must be written as an integer: as a float it may have been rounded")
    return value


def _bool_or_text(value: object) -> object:
    return value if isinstance(value, bool) else str(value)


def _text_to_bool(value: object) -> object:
    # Some clients write the values of booleans as texts.
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _refuse_nan(value: object) -> object:
    # not json.dumps: it would copy images of megabytes, on the event loop
    levels: list[Iterator[object]] = [iter((value,))]
    while levels:
        for one in levels[-1]:
            if isinstance(one, (dict, list)):
                levels.append(iter(one.values() if isinstance(one, dict) else one))
                break
            if isinstance(one, float) and not math.isfinite(one):
                raise PydanticCustomError("finite", "its numbers must be finite: JSON has no NaN and no Infinity")
        else:
            levels.pop()
    return value


def _replace_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


T = TypeVar("T")
# Validation of a list stops at its first wrong entry, because errors for all entries could take a hundred times the
# memory of the body.
FailFastList = Annotated[list[T], Field(fail_fast=True)]
# Any JSON. Without the first check, each NaN in it would be an error of its own, of about 1,600 bytes.
AnyJson = Annotated[JsonValue, BeforeValidator(_refuse_nan)]
JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(_refuse_nan)]
# Replaces lone surrogates, because pydantic's length limits refuse strings that have them.
VALID_TEXT = BeforeValidator(_replace_surrogates)
FLOAT_AS_INT = BeforeValidator(_float_to_int)  # must follow the limits in Annotated, or the JSON schema would lack them
Seed = Annotated[int, FLOAT_AS_INT, BeforeValidator(_refuse_rounded)]
Flag = Annotated[bool, BeforeValidator(_text_to_bool)]  # a boolean, or its text
OnlyFalse = Annotated[Literal[False], BeforeValidator(_bool_or_text)]  # refuses 0, although 0 == False in Python
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(ge=0, le=MAX_MAGNITUDE)]
Penalty = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
TokenId = Annotated[int, Field(ge=0, lt=2**31), FLOAT_AS_INT]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
# Stop strings are limited, because the engine compares each new token with all of them while all requests wait.
StopString = Annotated[str, StringConstraints(max_length=1000), VALID_TEXT]
Name = Annotated[str, StringConstraints(min_length=1), VALID_TEXT]
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
# -1: no limit, as for llama.cpp's server and LM Studio. -2 means the same to llama.cpp's server.
TokenLimit = Annotated[int, Field(ge=1, lt=2**31), FLOAT_AS_INT] | Literal[-1]
LlamaTokenLimit = Annotated[int, Field(ge=1, lt=2**31), FLOAT_AS_INT] | Literal[-1, -2]
StopStrings = Annotated[FailFastList[StopString], Field(max_length=64)]
CacheSalt = Annotated[str, StringConstraints(max_length=MAX_SALT), VALID_TEXT]
Breakers = Annotated[
    FailFastList[Annotated[str, StringConstraints(min_length=1, max_length=MAX_BREAKER), VALID_TEXT]],
    Field(max_length=MAX_BREAKERS),
]
ThinkingBudget = Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), FLOAT_AS_INT]


def not_supported(*neutral: object) -> BeforeValidator:
    """Return a validator for fields that are not supported: values that switch the field off become None."""
    return BeforeValidator(lambda value: None if value in neutral else value)


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
BiasPair = Annotated[
    list[TokenId | Penalty | Literal[False]], Field(min_length=2, max_length=2, fail_fast=True)
]  # llama.cpp's form of a bias; request_body.py checks it
LogitBiasPairs = Annotated[FailFastList[BiasPair], Field(max_length=MAX_BIASES)]
LogitBias = Annotated[
    dict[TokenKey, Penalty | Literal[False]],
    Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
    max_pairs(MAX_BIASES),
]

AnyLogitBias = Annotated[
    Annotated[LogitBias, Tag("mapping")] | Annotated[LogitBiasPairs, Tag("pairs")],
    Discriminator(lambda value: "pairs" if isinstance(value, list) else "mapping"),
]


# One of REASONING_EFFORTS in chat/template.py, or another word that the model's template knows
Effort = Annotated[str, StringConstraints(min_length=1, max_length=64), VALID_TEXT]

# Content is a text or a list of parts. The discriminator makes errors refer only to the form that the client sent.
Text = Annotated[str, Tag("text")]
BY_JSON_TYPE = Discriminator(lambda value: "text" if isinstance(value, str) else "parts")


MEDIA = ("audio", "video")


def refuse_media(part: object) -> object:
    """Refuse parts of a message that are neither text nor an image by their names. For BeforeValidator."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and (kind in ("file", "input_file") or any(name in kind for name in MEDIA)):
        raise PydanticCustomError(
            "unreadable", "{kind} is not supported: a message has text and images", {"kind": shown(kind)}
        )
    return part


def _refuse_images(part: object) -> object:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image"):
        raise PydanticCustomError(
            "unreadable",
            "{kind} is not supported here: only messages of users and results of tools have images",
            {"kind": shown(kind)},
        )
    return refuse_media(part)


TEXT_ONLY = BeforeValidator(_refuse_images)  # for parts of a content without images


class RequestModel(BaseModel):
    """The base of the objects in requests. Types are checked strictly; unknown fields are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(RequestModel):
    include_usage: bool | None = Field(
        None, description="Whether the stream ends with a chunk that has the usage and no choices."
    )


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]
    schema_: JsonObject | None = Field(
        None, alias="schema", description="A JSON schema of the output, as for llama.cpp's server."
    )


class JsonSchema(RequestModel):
    name: str | None = None
    description: str | None = None
    strict: Flag | None = Field(
        None, description="Whether a keyword that no grammar can express is refused. Otherwise a header names it."
    )
    schema_: JsonObject = Field(alias="schema")


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class PymtpOptions(RequestModel):
    origins: bool | None = Field(
        None,
        description="Whether each chunk says which of its characters were drafted, at which draft step or from text.",
    )


MAX_CHOICES = 2**14
Choices = Annotated[FailFastList[Annotated[str, VALID_TEXT]], Field(min_length=1, max_length=MAX_CHOICES)]


class StructuredOutputs(RequestModel):
    """A rule for the answer after the thinking, as for vLLM."""

    json_: JsonObject | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    regex: str | None = Field(None, description="A regular expression that matches the whole answer.")
    choice: Choices | None = Field(None, description="The texts that the answer may be.")
    grammar: str | None = Field(None, description="A grammar in GBNF.")
    json_object: bool | None = Field(None, description="Whether the answer must be a JSON object.")


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
    seed: Seed | None = Field(None, description="The seed, modulo 2**64; -1: a random seed.")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    dry_multiplier: Positive | None = Field(
        None,
        description="The penalty of a token that would continue a repetition of dry_allowed_length tokens; 0: off.",
    )
    dry_base: Annotated[float, Field(ge=1, le=MAX_MAGNITUDE)] | None = Field(
        None, description="The factor of DRY's penalty for each token more."
    )
    dry_allowed_length: Annotated[int, Field(ge=0, lt=2**31), FLOAT_AS_INT] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Number of last tokens that DRY looks at; 0: none, -1: all tokens."
    )
    dry_sequence_breakers: Breakers | str | None = Field(
        None, description="Strings at which a repetition ends; or the JSON text of their list."
    )
    top_n_sigma: Annotated[float, Field(le=MAX_MAGNITUDE)] | None = Field(
        None, description="Drop tokens that many standard deviations below the highest logit; 0 or less: off."
    )
    typical_p: Probability | None = Field(None, description="Locally typical sampling; 1: off.")
    xtc_probability: Probability | None = Field(
        None, description="How often XTC drops all but the least likely token of xtc_threshold or more; 0: off."
    )
    xtc_threshold: Probability | None = Field(None, description="Above 0.5: XTC is off.")
    dynatemp_range: Annotated[float, Field(le=MAX_MAGNITUDE)] | None = Field(
        None, description="Temperatures are this much below to above `temperature`, by the entropy; 0 or less: off."
    )
    dynatemp_exponent: Positive | None = None
    samplers: Annotated[FailFastList[str], Field(max_length=64)] | str | None = Field(
        None, description="The samplers to apply, in their order: names, or llama.cpp's letters in a string."
    )
    repetition_penalty: Annotated[float, Field(ge=1 / MAX_MAGNITUDE, le=MAX_MAGNITUDE)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1 / MAX_MAGNITUDE, le=MAX_MAGNITUDE)] | None = Field(
        None, description="llama.cpp's name of repetition_penalty."
    )
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Number of last tokens that penalties count; 0: none, -1: all tokens."
    )
    ignore_eos: bool | None = None
    logit_bias: AnyLogitBias | None = Field(
        None, description="Maps token ids to biases, or lists pairs of them; false: the token is never sampled."
    )
    stop_token_ids: Annotated[FailFastList[TokenId], Field(max_length=64)] | None = Field(
        None, description="Tokens that end the output."
    )
    grammar: str | None = Field(None, description="A grammar of the whole output in GBNF.")
    json_schema: JsonObject | str | None = Field(
        None, description="A JSON schema of the answer, as for llama.cpp's server, or its text, as for SGLang."
    )
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = Field(None, description="The same as structured_outputs.json.")
    guided_regex: str | None = Field(None, description="The same as structured_outputs.regex.")
    guided_choice: Choices | None = Field(None, description="The same as structured_outputs.choice.")
    guided_grammar: str | None = Field(None, description="The same as structured_outputs.grammar.")
    regex: str | None = Field(None, description="SGLang's name of structured_outputs.regex.")
    ebnf: str | None = Field(None, description="SGLang's name of structured_outputs.grammar.")
    draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFTS), FLOAT_AS_INT] | None = Field(
        None, description="Maximum number of drafts per round; 0: no drafts."
    )
    cache_salt: CacheSalt | None = Field(
        None, description="Only requests with the same salt reuse cached tokens of this prompt."
    )
    cache_prompt: bool | None = Field(
        None, description="false: no cached tokens are reused, and none of this prompt are kept."
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

    reasoning_effort: Effort | None = None
    enable_thinking: Flag | None = Field(
        None, description="The same as in chat_template_kwargs, which takes precedence."
    )
    preserve_thinking: Flag | None = Field(
        None, description="The same as in chat_template_kwargs, which takes precedence."
    )
    chat_template_kwargs: JsonObject | None = Field(None, description="Variables of the template.")


class CompletionFields(SamplingFields):
    """Fields that chat completions and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS), FLOAT_AS_INT] | None = None
    max_tokens: TokenLimit | None = None
    n_predict: LlamaTokenLimit | None = Field(None, description="llama.cpp's name of max_tokens.")
    stop: StopString | StopStrings | None = None
    response_format: ResponseFormat | None = None
    timings_per_token: bool | None = Field(None, description="Whether each chunk of a stream has timings.")
    return_progress: bool | None = Field(None, description="Whether a stream tells how much of the prompt is computed.")
    pymtp: PymtpOptions | None = None


MAX_PROMPTS = 2048
Prompt = Annotated[str, StringConstraints(min_length=1), VALID_TEXT]
Tokens = Annotated[FailFastList[TokenId], Field(min_length=1)]


def _check_number_of_prompts(value: object) -> object:
    # pydantic's own error would be about the first prompt, which is no token
    if isinstance(value, list) and len(value) > MAX_PROMPTS and isinstance(value[0], (str, list)):
        raise PydanticCustomError(
            "too_many",
            "a request has at most {limit} prompts, not {given}: send several requests",
            {"limit": MAX_PROMPTS, "given": len(value)},
        )
    return value


PROMPT_LIMIT = BeforeValidator(_check_number_of_prompts)


class CompletionRequest(CompletionFields):
    """One or several prompts that the model continues."""

    prompt: Annotated[
        Prompt
        | Tokens
        | Annotated[FailFastList[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[FailFastList[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)],
        PROMPT_LIMIT,
    ] = Field(description="A text, a list of token ids, a list of texts, or a list of lists of token ids.")
    max_tokens: Annotated[int, Field(ge=0, lt=2**31), FLOAT_AS_INT] | Literal[-1] | None = Field(
        None, description="0: the prompt is only computed, and the answer has no text beside `echo`."
    )
    echo: bool | None = Field(None, description="Return the prompt before the completion.")
    logprobs: bool | TopLogprobs | None = Field(
        None, description="Number of most likely tokens to report for each token; true: the same as 0."
    )
    suffix: Annotated[str, VALID_TEXT] | None = Field(
        None, description="The text after the one that the model fills in, if its vocabulary has tokens for that."
    )
    best_of: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = Field(None, description="At most n.")


class TextContentPart(RequestModel):
    type: Literal["text"]
    text: str


class ImageUrl(RequestModel):
    url: str = Field(description="A data URL; or a URL that the options of the server allow.")
    detail: Literal["auto", "low", "high", "original"] | None = Field(None, description="No effect.")


class ImagePart(RequestModel):
    type: Literal["image_url"]
    image_url: Annotated[Text | Annotated[ImageUrl, Tag("parts")], BY_JSON_TYPE]


class InputImagePart(RequestModel):
    """An image in the form of /v1/responses."""

    type: Literal["input_image"]
    image_url: str = Field(description="A data URL; or a URL that the options of the server allow.")
    detail: Literal["auto", "low", "high", "original"] | None = Field(None, description="No effect.")
    file_id: None = Field(None, description="Not supported: there are no uploaded files.")


MessageText = str | FailFastList[Annotated[TextContentPart, TEXT_ONLY]]
UserPart = Annotated[
    Annotated[TextContentPart | ImagePart | InputImagePart, Field(discriminator="type")], BeforeValidator(refuse_media)
]


class SystemMessage(RequestModel):
    role: Literal["system"]
    content: MessageText | None


class DeveloperMessage(RequestModel):
    role: Literal["developer"]
    content: MessageText | None


class UserMessage(RequestModel):
    role: Literal["user"]
    content: str | FailFastList[UserPart] | None


class CalledFunction(RequestModel):
    name: str
    arguments: AnyJson = Field(None, description="JSON of an object. Anything else becomes one text.")


class AssistantToolCall(RequestModel):
    id: str | None = None
    type: Literal["function"] | None = "function"
    function: CalledFunction


class CustomToolCall(RequestModel):
    """A call of a tool of type `custom`, whose input is one text."""

    id: str | None = None
    type: Literal["custom"]
    custom: JsonObject


def _call_type(call: object) -> str:
    kind = call.get("type") if isinstance(call, dict) else getattr(call, "type", None)
    return "custom" if kind == "custom" else "function tool"


PastToolCall = Annotated[
    Annotated[AssistantToolCall, Tag("function tool")] | Annotated[CustomToolCall, Tag("custom")],
    Discriminator(_call_type),
]


class AssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: AnyJson = Field(None, description="Text or parts. Parts without text become placeholders.")
    reasoning_content: str | None = Field(None, description="The thinking before the content.")
    reasoning: str | None = Field(None, description="vLLM's name of reasoning_content.")
    refusal: str | None = None
    tool_calls: FailFastList[PastToolCall] | None = None
    function_call: CalledFunction | None = Field(None, description="The deprecated form of tool_calls.")


class ToolMessage(RequestModel):
    """The result of a tool. The role `function` is the deprecated one."""

    role: Literal["tool", "function"]
    content: AnyJson = Field(None, description="Text or parts. Parts without text become placeholders.")
    tool_call_id: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class FunctionDefinition(RequestModel):
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="A JSON schema of an object.")
    strict: Flag | None = None


class ChatTool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class OtherTool(RequestModel):
    """A tool, or the choice of one, that this server cannot offer. It is skipped, and the answer's header names it."""

    type: str


def _tool_type(tool: object) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "other" if isinstance(kind, str) and kind != "function" else "function tool"


OfferedTool = Annotated[
    Annotated[ChatTool, Tag("function tool")] | Annotated[OtherTool, Tag("other")], Discriminator(_tool_type)
]


class NamedFunction(RequestModel):
    name: Name


class ChatNamedToolChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = (
    Literal["auto", "none", "required"]
    | Annotated[
        Annotated[ChatNamedToolChoice, Tag("function tool")] | Annotated[OtherTool, Tag("other")],
        Discriminator(_tool_type),
    ]
)


class ReasoningOptions(RequestModel):
    """Options of thinking, in the form of OpenRouter's API."""

    effort: Effort | None = Field(None, description="The same as reasoning_effort.")
    enabled: bool | None = Field(None, description="Whether the model thinks.")
    max_tokens: ThinkingBudget | None = Field(None, description="The same as thinking_budget.")
    exclude: bool | None = Field(None, description="Whether the answer leaves the thinking out.")


class ChatRequest(CompletionFields, TemplateFields):
    """A chat that the model continues."""

    messages: FailFastList[Message] = Field(min_length=1)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: FailFastList[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = Field(None, description="false: the same as reasoning.exclude.")
    thinking: ThinkingConfig | None = Field(
        None, description="disabled: sets the template variable enable_thinking to false."
    )
    reasoning_format: Literal["auto", "none", "deepseek", "parsed", "raw", "hidden"] | None = Field(
        None, description="none or raw: the content includes the thinking; hidden: the answer leaves it out."
    )
    verbose: bool | None = Field(
        None, description="Adds `__verbose`: the prompt and the whole text of the first completion. Not in streams."
    )
    continue_final_message: bool | None = Field(
        None, description="Whether the model continues the last message, which must be the assistant's."
    )
    functions: Annotated[None, not_supported([])] = Field(None, description="Not supported: use tools.")
    function_call: AnyJson = Field(None, description="Not supported: use tool_choice.")
    modalities: Annotated[FailFastList[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = Field(None, description="Not supported.")
    web_search_options: None = Field(None, description="Not supported.")


# The chunks of a chat's stream: what all of a stream's chunks share is encoded once (chunks.py).


class DeltaMessage(Answer):
    role: NotRequired[Literal["assistant"] | None]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    tool_calls: NotRequired[list[DeltaToolCall] | None]


class ChunkChoice(Answer):
    index: int
    delta: DeltaMessage
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    logprobs: ChatLogprobs | None


class Origins(Answer):
    """Says which characters of a chunk were drafted.

    origins: lists [field of the delta, number of characters, draft step] in the order of the text; the draft step is
        "text" for characters of drafts from text, and 0 for those of tokens that were sampled from the target model.
    rounds: lists, of each round, [number of verified drafts, number of accepted drafts, number of the verified ones
        that came from text, number of the accepted ones that did].
    """

    origins: list[Annotated[list[str | int], Field(min_length=3, max_length=3)]]
    rounds: list[Annotated[list[int], Field(min_length=4, max_length=4)]]


class ChatChunk(Answer):
    """A chunk of the stream of a chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]
    pymtp: NotRequired[DraftingStats | Origins | None]
    timings: NotRequired[Timings | None]
    prompt_progress: NotRequired[PromptProgress | None]
