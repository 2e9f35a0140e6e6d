"""Reading of the bodies of llama.cpp's server: prompts of texts and tokens, and the fields of a completion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fastapi import Request

from pymtp.chat.messages import user_text
from pymtp.chat.prompt import ChatPrompt
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.prompt_texts import MEDIA_MARKER
from pymtp.openai.request_body import TEXT, read_generate_request, unknown_fields
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS
from pymtp.sampling import MAX_LOGPROBS
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.image_parts import image_part, image_url, with_places
from pymtp.server.openai.types import MAX_PROMPTS
from pymtp.server.service import Admission, Service

# llama.cpp's defaults, for fields that neither the request, the server nor the model's file sets
DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "seed": None,
    "max_tokens": None,
}
MAX_BIAS_CHARACTERS = 1024  # the longest text whose tokens get a bias
_OWN_FIELDS = {"n_predict", "n_cmpl", "n_probs", "post_sampling_probs", "return_tokens", "response_fields"}
_OWN_FIELDS |= {"input_prefix", "input_suffix", "input_extra", "max_completion_tokens", "t_max_predict_ms"}
# Fields that have no effect here, each with the values that ask for nothing: of llama.cpp's server, and OpenAI's echo
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "id_slot": (-1,),
    "n_keep": (0,),
    "echo": (False,),
    "n_discard": (0,),
    "n_cache_reuse": (0,),
    "n_indent": (0,),
    "t_max_prompt_ms": (-1, 0),
    "min_keep": (0,),
    "lora": ([],),
}


@dataclass(frozen=True)
class NativeOptions:
    """The fields of a body that shape its answer.

    n_probs: number of reported tokens; None for no report.
    only_prompt: whether the prompt is only cached: the answer has no text.
    max_predict_seconds: time after which a completion with several lines ends; 0 for no limit.
    """

    stream: bool = False
    n_probs: int | None = None
    post_sampling: bool = False
    only_prompt: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: Sequence[str] = ()
    max_predict_seconds: float = 0.0


def read_native(
    fields: Mapping[str, Any], model: Model, defaults: Mapping[str, Any]
) -> tuple[GenerateRequest, NativeOptions]:
    """Read the fields of a body, except its prompts: the request has an empty prompt.

    defaults: the server's default sampling parameters, by their names in SamplingParams.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    body = {name: value for name, value in fields.items() if name not in _OWN_FIELDS | {"echo"}}
    limit = next(
        (fields[name] for name in ("n_predict", "max_completion_tokens", "max_tokens") if fields.get(name) is not None),
        -1,
    )
    body["max_tokens"] = None if limit < 0 else max(1, limit)
    body["n"] = fields.get("n_cmpl") or fields.get("n")
    n_probs = fields.get("n_probs") or fields.get("logprobs") or None
    post_sampling = bool(fields.get("post_sampling_probs")) and n_probs is not None
    # probabilities after the sampling are computed from those before it
    body["logprobs"] = MAX_LOGPROBS if post_sampling else n_probs
    if body.get("grammar"):  # the grammar applies where both are given
        body.pop("json_schema", None)
    body["grammar"] = body.get("grammar") or None
    if (bias := body.get("logit_bias")) is not None:
        body["logit_bias"] = _bias(bias, model)
    body["prompt"] = ""
    if isinstance(samplers := body.get("samplers"), list):  # llama.vim names a sampler that pymtp does not have
        body["samplers"] = [name for name in samplers if name != "infill"]
    request = read_generate_request(TEXT, body, {**DEFAULTS, **defaults})
    options = NativeOptions(
        stream=bool(fields.get("stream")),
        n_probs=n_probs,
        post_sampling=post_sampling,
        only_prompt=limit == 0,
        return_tokens=bool(fields.get("return_tokens")),
        timings_per_token=bool(fields.get("timings_per_token")),
        return_progress=bool(fields.get("return_progress")),
        response_fields=fields.get("response_fields") or (),
        max_predict_seconds=max(0, fields.get("t_max_predict_ms") or 0) / 1e3,
    )
    # only a stream tells while it runs whether it has a second line
    return replace(request, stream=request.stream or options.max_predict_seconds > 0), options


def ignored_names(fields: Mapping[str, Any]) -> list[str]:
    """List the fields of a body that change nothing: those that pymtp does not know, and those without effect."""
    known = _OWN_FIELDS | _WITHOUT_EFFECT.keys()
    names = [name for name in unknown_fields(TEXT, fields) if name not in known]
    names += [
        name
        for name, nothing in _WITHOUT_EFFECT.items()
        if fields.get(name) is not None and fields[name] not in nothing
    ]
    return sorted(names)


def read_prompts(prompt: object, name: str = "prompt") -> list[Any]:
    """Return the list of the prompts of a body, whose field `name` has one prompt or a list of prompts.

    A list that has a number is one prompt.

    Raises InvalidRequestError for an empty list, and for more than MAX_PROMPTS prompts.
    """
    if not isinstance(prompt, list) or any(isinstance(one, int) for one in prompt):
        return [prompt]
    if not prompt:
        raise InvalidRequestError(f"{name} must not be an empty list", name)
    if len(prompt) > MAX_PROMPTS:  # the limit of the field does not hold for texts: they may be one prompt's parts
        raise InvalidRequestError(
            f"{name}: a request has at most {MAX_PROMPTS} prompts, not {len(prompt)}: send several requests", name
        )
    return prompt


def prompt_names(prompts: Sequence[Any], given: object, name: str) -> list[str]:
    """Return where a body has the prompts that are read from the value of its field of this name."""
    return [name] if prompts[0] is given else [f"{name}[{i}]" for i in range(len(prompts))]


def is_plain(prompt: object) -> bool:
    """Return whether a prompt needs no `tokenize_prompt`: it is a text, or a list of token ids."""
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, int) for one in prompt))


def prompt_parts(prompt: Any) -> Sequence[str | int]:
    """Return the texts and token ids of a prompt: a text, a list of both, or an object that has one of these."""
    if isinstance(prompt, dict):
        prompt = prompt["prompt_string"]
    return [prompt] if isinstance(prompt, str) else prompt


def tokenize_prompt(prompt: Any, model: Model, n_ctx: int) -> list[int]:
    """Return the tokens of a text, of a list of texts and token ids, or of an object that has one of these.

    A text at the beginning gets the tokens that the vocabulary puts before a text.

    Raises ContextFullError, without tokenizing anything, for texts that are far too long for n_ctx tokens, or too many.
    """
    parts = [part for i, part in enumerate(prompt_parts(prompt)) if part != "" or i == 0]
    if len(parts) - 1 > n_ctx:  # each part but an empty first one has a token
        raise ContextFullError(f"the prompt has at least {len(parts) - 1} tokens, n_ctx is {n_ctx}")
    model.check_fits("".join(part for part in parts if isinstance(part, str)), n_ctx)
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            tokens += model.tokenize(part, add_special=i == 0)
        else:
            tokens.append(part)
    return tokens


def with_prompt(request: GenerateRequest, prompt: Any, llm: LLM, options: NativeOptions) -> GenerateRequest:
    """Return the request for a prompt of a body. Tokenizes what is neither a text nor a list of token ids.

    A prompt that is only cached gets a branch point at its end, where the prompts that it is cached for go on.

    Raises ContextFullError for a prompt that is far too long for the context.
    """
    if isinstance(prompt, ImageContent):
        made = prompt_with_images(prompt, llm)
    elif is_plain(prompt) and not options.only_prompt:
        return replace(request, prompt=prompt)
    else:
        made = ChatPrompt(tokenize_prompt(prompt, llm.model, llm.context.n_ctx), ())
    if options.only_prompt:
        ends = {len(made.tokens) - 1, len(made.tokens) - TAIL_TOKENS}
        made = made._replace(branch_points=tuple(sorted(end for end in ends if end > 0)))
    return replace(request, prompt=made)


class ImageContent(list[Any]):
    """The texts and images of a prompt, as parts of a message."""


@asynccontextmanager
async def read_images(
    request: Request, service: Service, prompts: Sequence[Any], names: Sequence[str], admission: Admission
) -> AsyncIterator[list[Any]]:
    """Return prompts in which those with images are ImageContents, whose images are read: see `Service.read_messages`.

    names: where the body has the prompts.

    Raises InvalidRequestError for another number of markers than of images, ClientDisconnectedError, and the errors of
    `Service.read_messages`.
    """
    contents = list(map(_image_content, prompts, names))
    if not any(contents):
        yield list(prompts)
        return
    reading = service.read_messages([{"role": "user", "content": content} for content in contents], admission)
    async with AsyncExitStack() as stack:
        messages = await run_until_disconnect(request.receive, stack.enter_async_context(reading))
        yield [
            prompt if content is None else ImageContent(message["content"])
            for prompt, content, message in zip(prompts, contents, messages, strict=True)
        ]


def _image_content(prompt: Any, name: str) -> list[Any] | None:
    """Return the texts and images of a prompt; None for one without images. name: where the body has it."""
    if not isinstance(prompt, dict):
        return None
    if not prompt.get("multimodal_data"):
        parts = () if "prompt_string" in prompt else with_places(prompt["content"], f"{name}.content")
        return list(parts) if any(image_url(part) is not None for part in parts) else None
    text, images = prompt["prompt_string"], prompt["multimodal_data"]
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name}.prompt_string must be a text beside multimodal_data", "prompt_string")
    first, *others = [{"type": "text", "text": part} for part in text.split(MEDIA_MARKER)]
    if len(others) != len(images):
        raise InvalidRequestError(
            f"{name}: prompt_string has {len(others)} times {MEDIA_MARKER}, and multimodal_data has {len(images)} "
            "images",
            "prompt_string",
        )
    placed = (image_part(url, f"{name}.multimodal_data[{i}]") for i, url in enumerate(images))
    return [first, *chain.from_iterable(zip(placed, others, strict=True))]


def prompt_with_images(content: ImageContent, llm: LLM) -> ChatPrompt:
    """Return the prompt of texts and images. Raises InvalidRequestError for an image that is refused."""
    images = llm.chat_prompts.collect_images()
    text = user_text(content, "", images)
    assert images is not None  # else user_text refuses the images
    return llm.chat_prompts.text_prompt(text, images)


def _bias(bias: Any, model: Model) -> dict[str, Any]:
    """Return a logit bias by token ids. Texts stand for each of their tokens.

    Raises InvalidRequestError for a text of more than MAX_BIAS_CHARACTERS.
    """
    pairs = bias.items() if isinstance(bias, dict) else bias
    found: dict[str, Any] = {}
    for key, value in pairs:
        if isinstance(value, str):
            raise InvalidRequestError("logit_bias must have pairs of a token or text and a number", "logit_bias")
        if isinstance(key, str) and not key.isdecimal():
            if len(key) > MAX_BIAS_CHARACTERS:
                raise InvalidRequestError(
                    f"logit_bias has a text of {len(key)} characters: give at most {MAX_BIAS_CHARACTERS}", "logit_bias"
                )
            found |= {str(token): value for token in model.tokenize(key, add_special=False)}
        else:
            found[str(key)] = value
    return found
