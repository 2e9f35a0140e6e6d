"""The requests for prompts: prompts and params are checked, templates rendered, texts tokenized, thinking planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import NamedTuple, TypeAlias

from pymtp.chat import Chat, ChatTemplate, OutputFormat, read_tool_choice, read_tools
from pymtp.chat.images import NO_PROJECTOR
from pymtp.chat.output_grammar import grammar_after_thinking
from pymtp.chat.prompt import ChatPrompt, ChatPrompts
from pymtp.chat.qwen_tags import THINK_END, THINK_START, TOOL_CALL_START
from pymtp.context.context import Context
from pymtp.engine.image_encoder import ImageEncoder, PromptImages
from pymtp.engine.request import Caller, Request, Waiter, cache_key, current_caller
from pymtp.engine.text import ThinkingPlan
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.model.model import Model
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import SamplingParams
from pymtp.validation import read_int, shown

Prompt: TypeAlias = str | Sequence[int] | Chat | ChatPrompt
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None

NEWLINES = "\n\n"  # templates write these newlines after </think>
N_END_TOKENS = 16  # last tokens of a prompt that are searched for an open <think>


class CheckedPrompt(NamedTuple):
    """A prompt that was checked.

    params: the params of its request, with the grammar of the output format.
    output_format: the format of a chat's output; None for other prompts.
    """

    prompt: ChatPrompt
    params: SamplingParams
    output_format: OutputFormat | None = None


class RequestMaker:
    """Makes the requests of an LLM from prompts and params. Threads may share it."""

    def __init__(
        self,
        model: Model,
        context: Context,
        template: str | None,
        template_variables: Mapping[str, object],
        images: ImageEncoder | None = None,
    ) -> None:
        """Create the maker of requests for one context.

        template: source of a chat template in place of that of the model's file; None for the file's own.
        template_variables: default variables of the template.
        images: the encoder of images; None for a model that sees none.
        """
        self._model, self._context, self._images = model, context, images
        self._own_template, self._template_variables = template, template_variables

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Return the chat template that the LLM was given, or else the template of the model's file.

        Raises InvalidRequestError if there is no template, or if that of the file cannot be compiled.
        """
        return ChatTemplate(self._model, self._own_template, self._template_variables)

    @property
    def template_source(self) -> str | None:
        """Return the source of `chat_template`, even if it cannot be compiled; None without a template."""
        return self._model.chat_template if self._own_template is None else self._own_template

    @cached_property
    def chat_prompts(self) -> ChatPrompts:
        """Return the ChatPrompts of the LLM: `chat_prompts.prompt(Chat(…))` renders and tokenizes a chat.

        Raises the errors of `chat_template`.
        """
        return ChatPrompts(self._model, self.chat_template, self._context.n_ctx, self._images)

    def make(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        waiter: Waiter,
        *,
        priority: int = 0,
        max_unread: int | None = None,
        branch_points: Sequence[Sequence[int]] = (),
        saver: PrefixSaver | None = None,
        cancel_count: int | None = None,
    ) -> list[Request]:
        """Check prompts and params, and make a request for each completion.

        The requests of one prompt (n above 1) are adjacent in the list. Raises the errors of `LLM.generate`.

        max_unread: the largest number of unread pieces of a request, which pauses at that number; None if no pieces are
            read.
        branch_points: for each prompt, the numbers of tokens after which later prompts are expected to differ from it.
            A Chat adds its own branch points.
        saver: writes the state of the prompt to a file. With a saver, `prompts` must be one prompt.
        cancel_count: the value of Context.cancels when the caller began; None for its value now.
        """
        # read now: a cancel() during the checks below cancels these requests too
        cancels = self._context.cancels if cancel_count is None else cancel_count
        priority = read_int("priority", priority, -(2**31))
        caller = current_caller.get() or Caller(call=object())
        branch_points = branch_points if saver is None else [saver.checkpoints]
        params_list = _read_params(params, len(prompts))
        checked = [self._checked(prompt, one) for prompt, one in zip(prompts, params_list, strict=True)]
        return [
            Request(
                self._model,
                prompt.tokens,
                params,
                waiter,
                priority=priority,
                max_unread=max_unread,
                seed_offset=i,
                group=group,
                caller=caller,
                branch_points=(*prompt.branch_points, *more),
                saver=saver,
                thinking=thinking,
                output_format=output_format,
                cancel_count=cancels,
                images=PromptImages(prompt.images, cache_key(params)),
            )
            for (prompt, params, output_format), more in zip(checked, branch_points or [()] * len(checked), strict=True)
            for thinking in [plan_thinking(self._model, prompt, params, self._context.n_ctx)]
            for group in [object() if params.n > 1 else None]
            for i in range(params.n)
        ]

    def check_images(self, prompt: ChatPrompt) -> PromptImages:
        """Check a prompt with images that is no request. Raises the errors of `make` for such a prompt."""
        self.check_length(prompt.tokens)
        return PromptImages(self._checked_tokens(prompt).images, cache_key(SamplingParams()))

    def prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokenize a string, or check token ids.

        Raises InvalidRequestError for ids outside the vocabulary, and ContextFullError, without any work, for prompts
        that are far too long.
        """
        if isinstance(prompt, str):
            self._model.check_fits(prompt, self._context.n_ctx)
            return self._model.tokenize(prompt)
        if isinstance(prompt, (list, tuple)):
            self._check_number(len(prompt))
        tokens = _token_ids(prompt)
        self._model.check_tokens(tokens)
        return tokens

    def check_length(self, tokens: Sequence[int]) -> None:
        """Raise InvalidRequestError for an empty prompt, ContextFullError for one longer than the context."""
        if not tokens:
            raise InvalidRequestError("the prompt is empty")
        self._check_number(len(tokens))

    def _check_number(self, n_tokens: int) -> None:
        if n_tokens > self._context.n_ctx:
            raise ContextFullError(f"the prompt has {n_tokens} tokens, n_ctx is {self._context.n_ctx}")

    def _checked(self, prompt: Prompt, params: SamplingParams) -> CheckedPrompt:
        if isinstance(prompt, Chat):
            checked = self._checked_chat(prompt, params)
        elif isinstance(prompt, ChatPrompt):
            checked = CheckedPrompt(self._checked_tokens(prompt), params)
        else:
            checked = CheckedPrompt(ChatPrompt(self.prompt_tokens(prompt), ()), params)
        self.check_length(checked.prompt.tokens)
        if checked.prompt.images and params.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs are for prompts without images, as an image has no tokens to compare with",
                "prompt_logprobs",
            )
        return checked

    def _checked_tokens(self, prompt: ChatPrompt) -> ChatPrompt:
        if not prompt.images:
            return prompt._replace(tokens=self.prompt_tokens(prompt.tokens))
        if self._images is None:
            raise InvalidRequestError(NO_PROJECTOR)
        self.prompt_tokens([token for token in prompt.tokens if token >= 0])
        self.check_length(prompt.tokens)
        self._images.check_prompt(prompt)
        return prompt

    def _checked_chat(self, chat: Chat, params: SamplingParams) -> CheckedPrompt:
        """Render a chat, and make the format of its output from its tools and the json_schema of its params."""
        tools = () if chat.tools is None else read_tools(chat.tools)
        choice, key = read_tool_choice(chat.tool_choice, tools), cache_key(params)
        offered = chat if tools and choice != "none" else replace(chat, tools=None)
        prompt = self.chat_prompts.prompt(apply_thinking_budget(offered, params), key)
        output_format = OutputFormat(
            self.template_source,
            prompt.end,
            tools=tools,
            tool_choice=choice,
            schema=json.loads(params.json_schema) if isinstance(params.json_schema, str) else None,
            strict_schema=params.strict_schema,
            cache_key=key,
        )
        if output_format.gbnf is None:
            return CheckedPrompt(prompt, params, output_format)
        if params.grammar is not None:
            raise InvalidRequestError("grammar cannot be combined with tools: they have their own", "grammar")
        params = replace(
            params,
            json_schema=None,
            grammar=output_format.gbnf,
            distinct_calls=params.distinct_calls or output_format.needs_distinct_calls,
        )
        return CheckedPrompt(prompt, params, output_format)


def _read_params(params: Params, n_prompts: int) -> Sequence[SamplingParams]:
    """Return one SamplingParams for each prompt. Raises InvalidRequestError for other types and numbers."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n_prompts
    if not isinstance(params, Sequence):
        raise InvalidRequestError(f"params must be SamplingParams, or a list of them, not {type(params).__name__}")
    if len(params) != n_prompts:
        raise InvalidRequestError(f"{len(params)} params for {n_prompts} prompts")
    for one in params:
        if not isinstance(one, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, not {type(one).__name__}")
    return params


def _token_id(token: object) -> int:
    if isinstance(token, bool):
        raise TypeError
    return index(token)  # type: ignore[arg-type]


def _token_ids(prompt: Sequence[int]) -> list[int]:
    with suppress(TypeError):
        if not isinstance(prompt, (bytes, bytearray, Mapping, Set)):  # they may yield numbers, but are not token ids
            return [_token_id(token) for token in prompt]
    raise InvalidRequestError(f"a prompt is a string or token ids, not {shown(prompt)}")


def plan_thinking(model: Model, prompt: ChatPrompt, params: SamplingParams, n_ctx: int) -> ThinkingPlan:
    """Plan the thinking after a prompt. Raises InvalidRequestError for a budget beyond the context."""
    last = [token for token in prompt.tokens[-N_END_TOKENS:] if token >= 0]
    end = prompt.end or b"".join(map(model.token_bytes, last)).decode(errors="ignore")
    begun, no_stop_in_thinking = end.rstrip().endswith(THINK_START), prompt.end != ""
    budget, gbnf = params.thinking_budget, params.gbnf
    calls = gbnf is not None and TOOL_CALL_START in gbnf
    if budget is None:
        return ThinkingPlan(begun, no_stop_in_thinking, calls)
    if budget > n_ctx:
        raise InvalidRequestError(
            f"thinking_budget={shown(budget)} is beyond the context of n_ctx={n_ctx} tokens: give less, or None",
            "thinking_budget",
        )
    message = model.tokenize(params.thinking_end, add_special=False) if budget and params.thinking_end else []
    close = model.tokenize(THINK_END + NEWLINES, add_special=False)
    output_grammar = None if params.grammar is None else grammar_after_thinking(params.grammar)
    names_end = params.grammar is not None and output_grammar is None and THINK_END in params.grammar
    waits = begun and gbnf is not None and not names_end and output_grammar is None and params.grammar_prefix == 0
    return ThinkingPlan(
        begun,
        no_stop_in_thinking,
        calls and not waits,
        budget,
        closing=(*message, *close),
        newlines=tuple(model.tokenize(NEWLINES, add_special=False)),
        grammar_waits=waits,
        grammar=output_grammar or gbnf,
        grammar_prefix=len(close) if names_end else 0,
    )


def apply_thinking_budget(chat: Chat, params: SamplingParams) -> Chat:
    """Return the chat; for a thinking budget of 0, a copy that tells the template to switch thinking off."""
    variables = {} if chat.chat_template_kwargs is None else chat.chat_template_kwargs
    if params.thinking_budget != 0 or not isinstance(variables, Mapping):  # ChatTemplate.render refuses other types
        return chat
    return replace(chat, chat_template_kwargs={**variables, "enable_thinking": False})
