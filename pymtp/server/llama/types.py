"""The requests and answers of llama.cpp's server, as pydantic models and typed dicts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import NotRequired

from pymtp.openai.prompt_texts import MEDIA_MARKER
from pymtp.openai.response_body import Answer
from pymtp.openai.timings import PromptProgress, Timings
from pymtp.sampling import MAX_COMPLETIONS, MAX_LOGPROBS
from pymtp.server.openai.types import (
    FLOAT_AS_INT,
    MAX_BIASES,
    MAX_PROMPTS,
    VALID_TEXT,
    FailFastList,
    JsonObject,
    Penalty,
    RequestModel,
    SamplingFields,
    StopString,
    StopStrings,
    TokenId,
    max_pairs,
)

Text = Annotated[str, VALID_TEXT]
# A prompt is a text, or a list of texts and token ids.
MixedPrompt = FailFastList[TokenId | Text]


class PromptObject(RequestModel):
    """A prompt as an object."""

    prompt_string: Text | MixedPrompt
    multimodal_data: FailFastList[str] | None = Field(
        None, description=f"The images, as base64, in the places of {MEDIA_MARKER} in the prompt_string."
    )


OnePrompt = Text | PromptObject | MixedPrompt
NPredict = Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT]
# [token, bias] or [text, bias]; false: never sampled
BiasPair = Annotated[FailFastList[TokenId | Text | Penalty | Literal[False]], Field(min_length=2, max_length=2)]


class NativeFields(SamplingFields):
    """The fields of /completion and /infill beside the prompt, by their names in llama.cpp's server."""

    model: str | None = None
    stream: bool | None = None
    n_predict: NPredict | None = Field(
        None, description="Maximum number of tokens; -1: those of the context, 0: the prompt is only cached."
    )
    max_tokens: NPredict | None = Field(None, description="The same as n_predict.")
    max_completion_tokens: NPredict | None = Field(None, description="The same as n_predict.")
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS), FLOAT_AS_INT] | None = Field(
        None, description="Number of completions of each prompt."
    )
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS), FLOAT_AS_INT] | None = Field(
        None, description="The same as n_cmpl."
    )
    n_probs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), FLOAT_AS_INT] | None = Field(
        None, description="Number of most likely tokens to report for each token."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), FLOAT_AS_INT] | None = Field(
        None, description="The same as n_probs."
    )
    post_sampling_probs: bool | None = Field(
        None, description="Report the probabilities after top-k, top-p, min-p and temperature."
    )
    stop: StopString | StopStrings | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=1e30)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[dict[Text, Penalty | Literal[False]], Field(max_length=MAX_BIASES), max_pairs(MAX_BIASES)]
        | Annotated[FailFastList[BiasPair], Field(max_length=MAX_BIASES)]
        | None
    ) = Field(  # type: ignore[assignment] # wider than in OpenAI's API
        None, description="Maps token ids or texts to biases, or a list of such pairs; false: never sampled."
    )
    json_schema: JsonObject | None = Field(None, description="A JSON schema of the output.")
    return_tokens: bool | None = Field(None, description="Whether the answer has the token ids.")
    timings_per_token: bool | None = Field(None, description="Whether each event of a stream has timings.")
    return_progress: bool | None = Field(None, description="Whether a stream tells how much of the prompt is computed.")
    t_max_predict_ms: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Milliseconds after the first token after which a completion that has a second line ends."
    )
    response_fields: Annotated[FailFastList[Text], Field(max_length=100)] | None = Field(
        None, description="Fields of the answer to return; a/b is the field b of the field a. Empty: all fields."
    )


class NativeRequest(NativeFields):
    """One or several prompts that the model continues."""

    prompt: OnePrompt | Annotated[FailFastList[OnePrompt], Field(max_length=MAX_PROMPTS)] = Field(
        description="A text, token ids, a list of both, an object, or a list of these."
    )


class ExtraFile(RequestModel):
    """A file or snippet that precedes the text to be filled in."""

    text: Text
    filename: Text | None = None


class InfillRequest(NativeFields):
    """A text to be filled in between a prefix and a suffix."""

    input_prefix: Text | MixedPrompt = Field(description="The text before the cursor, up to the beginning of its line.")
    input_suffix: Text | MixedPrompt = Field(description="The text after the cursor.")
    input_extra: Annotated[FailFastList[ExtraFile], Field(max_length=1000)] | None = None
    prompt: Text | None = Field(None, description="Text that follows the prefix, such as the begun line.")


class NativeTopLogprob(Answer):
    id: int
    token: str
    bytes: list[int]
    logprob: NotRequired[float]
    prob: NotRequired[float]


class NativeLogprob(NativeTopLogprob):
    top_logprobs: NotRequired[list[NativeTopLogprob]]
    top_probs: NotRequired[list[NativeTopLogprob]]


class NativeChunk(Answer):
    """An event of the stream of a completion. Its last event is a NativeCompletion."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[NativeLogprob]]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]


class NativeCompletion(Answer):
    """The completion of a prompt, as llama.cpp's server answers it.

    index: prompts are counted first, then the completions of a prompt.
    id_slot: always -1: sequences are chosen by pymtp.
    stop_type: eos (an end token), word (a stop string) or limit.
    truncated: whether the context was full.
    tokens_cached: number of tokens of the prompt and the completion.
    tokens_evaluated: number of tokens of the prompt.
    """

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "word", "limit"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: NotRequired[list[NativeLogprob]]
