"""The LLM: a loaded model that generates, streams and chats."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property
from operator import index
from typing import Any, Literal, overload

import numpy as np

from pymtp.chat import Chat, ChatTemplate, Message, Tools, read_template, read_variables
from pymtp.chat.prompt import ChatPrompt, ChatPrompts
from pymtp.chat.thinking import apply_thinking_budget, has_tools, plan_thinking
from pymtp.context.context import Context
from pymtp.context.gpu_layers import fitting_model
from pymtp.context.host_memory import default_cache_bytes, read_cache_bytes
from pymtp.context.options import check_keywords
from pymtp.drafting.depth import MAX_AUTO, RoundCosts
from pymtp.drafting.head_check import HeadCheck
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.collect import collect_completions
from pymtp.engine.engine import Engine
from pymtp.engine.engine_stats import Figures
from pymtp.engine.prefix_files import PrefixFileMixin, Prompt
from pymtp.engine.request import Completion, Request, Waiter
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.engine.stream import Stream
from pymtp.engine.thread import EngineRunner
from pymtp.engine.warm_up import WarmUp
from pymtp.errors import ClosedError, InvalidRequestError
from pymtp.hub.from_pretrained import HubMixin
from pymtp.model.model import TAPS, Model
from pymtp.model.options import MODEL_OPTION_NAMES, NONE_MEANS_DEFAULT
from pymtp.model.rope import ROPE_OPTION_NAMES, RopeOptions
from pymtp.native.cores import default_threads
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import SamplingParams
from pymtp.sampling_defaults import default_chat_params, read_sampling_defaults
from pymtp.validation import read_bool, read_int, shown

Params = SamplingParams | Sequence[SamplingParams] | None
log = logging.getLogger(__name__)


class LLM(PrefixFileMixin, HubMixin):
    """A loaded model with its contexts, for text generation with multi-token-prediction drafts.

        llm = pymtp.LLM("model.gguf", n_ctx=8192)
        completion = llm.generate("def fibonacci(n):", pymtp.SamplingParams(max_tokens=64))

    `generate` and `chat` return completions, `stream` and `stream_chat` return them piece by piece; `save_prefix` and
    `load_prefix` keep the state of a long prompt in a file. Drafts make generation faster and never change the text.

    Threads: several threads may call an LLM at the same time. Their requests run in one batch, up to n_seq_max at once.
    An LLM has no thread of its own for requests: a thread that waits for tokens runs the engine for all requests. A
    request generates the same text alone and beside other requests.

    Signals: Ctrl-C, and any other exception from a signal handler, ends the call of the main thread only. A handler may
    call cancel() and close(), and no other method.

    Closing: close() waits for the running calls. After close(), methods that need the model raise
    ClosedError.

    Fork: on the CPU, a child process made by fork may use the LLM and make new ones. If another thread was in a call at
    the fork, the child's LLM is closed. With a GPU, start processes by "spawn" and load the model in each.

    model: the loaded Model. sampling_defaults: the sampling values that the model's file recommends
        (`general.sampling.*`), by the names of SamplingParams. A warning in the log names each key that is ignored.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | None = None,
        *,
        n_ctx: int = 8192,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        all_threads: bool = False,
        n_gpu_layers: int | Literal["auto"] | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        draft_tokens: int | Literal["auto"] = "auto",
        draft_vocab: int | Literal["auto", "all"] = "auto",
        tap: str = "auto",
        prefill: str = "fused",
        draws: str = "auto",
        cache_prompt: bool = True,
        cache_bytes: int | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        offload_kqv: bool = True,
        **placing: Any,
    ) -> None:
        """
        Load the model and make its contexts.

        model: a GGUF file; None for the small model that ships with pymtp. Or a loaded Model, which several LLMs may
            share: close() leaves it open, and it has its own n_gpu_layers and ModelOptions.
        draft_tokens: tokens to draft in each round, 0 for plain decoding. "auto" chooses the number for each round from
            the measured acceptance and the measured time of rounds: from 0 to 7 (fewer where n_batch or n_ubatch is
            less than 8), and 0 without a multi-token-prediction head. The first LLM of a model with "auto" times a few
            decodes.
        n_seq_max: sequences that run at once; further requests wait. Each sequence takes the memory of n_ctx tokens and
            of its recurrent states.
        cache_prompt: reuse the cached state of earlier prompts and completions for prompts that begin with the same
            tokens.
        cache_bytes: bytes of host memory for cached states that no sequence holds any more. None for a quarter of the
            machine's memory, at most 8 GiB and at most half of the memory that the model leaves free. With 0, prompts
            reuse only the states that sequences hold.
        chat_template: a chat template in place of the file's own: Jinja source, or the path of a file with it.
        chat_template_kwargs: default variables of the template, such as {"enable_thinking": False}; a chat may override
            them.
        n_gpu_layers: layers on the GPU, -1 or None for all; "auto" for as many as fit beside the context.
        placing: further fields of ModelOptions and RopeOptions.
        The keywords that are not explained here are those of `Context`.

        Raises ModelLoadError for a file that cannot be loaded, InvalidRequestError for values outside their range.
        """
        super().__init__()
        context_options: dict[str, Any] = {
            "type_k": type_k,
            "type_v": type_v,
            "flash_attn": flash_attn,
            "draft_vocab": draft_vocab,
            "tap": tap,
            "prefill": prefill,
            "draws": draws,
            "offload_kqv": offload_kqv,
            "all_threads": all_threads,
        }
        sizes: dict[str, Any] = {"n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": n_ubatch, "n_seq_max": n_seq_max}
        check_keywords({**context_options, **sizes, "n_threads": n_threads, "draft_tokens": draft_tokens})
        self._own_template = read_template(chat_template)
        self._template_variables = read_variables(chat_template_kwargs)
        cache_bytes = read_cache_bytes(cache_bytes)
        cache_prompt = read_bool("cache_prompt", cache_prompt)
        model_options = {name: placing.pop(name) for name in MODEL_OPTION_NAMES & placing.keys()}
        model_options = {
            name: value for name, value in model_options.items() if value is not None or name not in NONE_MEANS_DEFAULT
        }
        warm_up_later = placing.pop("_warm_up_later", False)  # AsyncLLM sets it, and warms up while it is idle
        if n_gpu_layers is not None:
            model_options["n_gpu_layers"] = n_gpu_layers
        if unknown := placing.keys() - ROPE_OPTION_NAMES:
            raise TypeError(f"LLM() got an unexpected keyword argument {min(unknown)!r}")
        context_options["rope"] = RopeOptions(**placing)
        auto = draft_tokens == "auto"
        self._shares_model = isinstance(model, Model)
        if isinstance(model, Model):
            if model_options:
                raise InvalidRequestError(f"the Model is loaded already: give {', '.join(model_options)} to Model(…)")
            self.model = model
        else:
            self.model = fitting_model(model, model_options, draft_tokens=draft_tokens, **sizes, **context_options)
        self.sampling_defaults, notes = read_sampling_defaults(self.model.metadata)
        for note in notes:
            log.warning("%s", note)
        max_auto = max(0, min(MAX_AUTO, index(n_batch) - 1, index(n_ubatch) - 1)) if self.model.mtp else 0
        cost_options: dict[str, Any] = {  # options that change the time of a round
            "n_threads": default_threads() if n_threads is None else n_threads,
            "draft_tokens": max_auto if auto else draft_tokens,
            **context_options,
        }
        self._context: Context | None = Context(self.model, **sizes, **cost_options)
        costs = RoundCosts() if auto else None
        depth = BatchDepth(self._context.n_ctx, self._context.n_ubatch, self._context.draft_tokens, costs)
        budget = default_cache_bytes(self._context.memory()) if cache_bytes is None else cache_bytes
        other_tap = TAPS[(self.model.tap if tap == "auto" else tap) == TAPS[0]]
        head_check = HeadCheck(self.model.file_names, f'tap="{other_tap}", another file, or draft_tokens=0')
        self._engine = Engine(self.context, depth, cache_prompt=cache_prompt, cache_bytes=budget, head_check=head_check)
        self._runner = EngineRunner(self._engine)
        options_key = (n_seq_max, *cost_options.values())
        self._warm_up = WarmUp(depth, options_key, done=costs is None or not max_auto)
        if not warm_up_later:
            try:
                self._warm_up.run(self._context)
            except BaseException:  # such as Ctrl-C: a kept traceback must not keep the contexts in memory
                self.close()
                raise
        # The LLM and its context share one lock. With two, each of two threads could hold one and wait for the other.
        self._lock = self._context._lock
        head = (
            None if not self.model.has_head else "own" if self.model.head is None else os.path.basename(self.model.head)
        )
        self._repr = (
            f"LLM({self.model.path.name!r}, n_ctx={self._context.n_ctx}, n_seq_max={self._context.n_seq_max}, "
            f"head={head!r}, draft_tokens={'auto' if auto else self._context.draft_tokens!r})"
        )

    def __repr__(self) -> str:
        return getattr(self, "_repr", "LLM(not loaded)")  # a debugger may show an LLM whose constructor has not ended

    @property
    def context(self) -> Context:
        """Return the context of the target and the head. Raises ClosedError after close()."""
        if self._context is None:
            raise ClosedError("the LLM is closed")
        return self._context

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Return the chat template that the LLM was given, or else the template of the model's file.

        Raises InvalidRequestError if there is no template, or if that of the file cannot be compiled.
        """
        return ChatTemplate(self.model, self._own_template, self._template_variables)

    @property
    def template_source(self) -> str | None:
        """Return the source of `chat_template`, even if it cannot be compiled; None without a template."""
        return self.model.chat_template if self._own_template is None else self._own_template

    @cached_property
    def chat_prompts(self) -> ChatPrompts:
        """Return the ChatPrompts of the LLM: `chat_prompts.prompt(Chat(…))` renders and tokenizes a chat.

        Raises the errors of `chat_template`.
        """
        return ChatPrompts(self.model, self.chat_template)

    def _free(self) -> None:
        if self._context is not None:
            self._engine.close(ClosedError("the LLM is closed"))
            self._context.close()
            self._context = None
            if not self._shares_model:
                self.model.close()

    def cancel(self) -> None:
        """Cancel all running calls and open streams: safe from any thread and any signal handler, at any time.

        The calls end after the current ubatch, or after their prompts are checked. Each unfinished completion has
        finish_reason "cancelled", also if its request was still waiting. Later calls are not affected. Does
        nothing without a running call, and after close().
        """
        context = self._context
        if context is not None:
            context.cancel()

    def figures(self) -> Figures:
        """Return the counters of the engine: running and waiting requests, tokens/s, acceptance, the prefix cache."""
        return self._engine.figures()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the params that `chat` uses by default: SamplingParams() with the values of `sampling_defaults`.

        max_tokens is None: a completion ends where the model ends it or the context is full. The temperature is 0.7 if
        the model's file recommends none.
        """
        return default_chat_params(self.sampling_defaults)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0) -> Stream:
        """Generate the completion of one prompt piece by piece.

        Raises the errors of `generate`, before the first piece, and InvalidRequestError for a list of params and for n
        above 1.
        """
        check_stream(params)
        requests: list[Request] = []
        try:
            self._submit([prompt], params, Waiter(), priority=priority, max_unread=MAX_UNREAD_PIECES, into=requests)
            return Stream(self, self._runner, requests[0])
        except BaseException:  # even one from a signal handler: no Stream will read the request
            self._runner.cancel(requests)
            raise

    @overload  # a string is a sequence of strings, too
    def generate(self, prompts: Prompt, params: Params = None, *, priority: int = 0) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: Sequence[Prompt], params: Params = None, *, priority: int = 0) -> list[Completion]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, priority: int = 0
    ) -> Completion | list[Completion]:
        """Generate the completion of one prompt, or a list of completions for a list of prompts.

        prompts: a prompt is a string or a sequence of token ids. The completions have the order of the prompts.
        params: SamplingParams for all prompts, or a list with one for each prompt.
        priority: of the waiting requests, those with the lowest number run first.

        Raises InvalidRequestError for an empty prompt, a token id outside the vocabulary and params that are refused,
        ContextFullError for a prompt longer than n_ctx. All prompts are checked before the first runs. A request that
        fails later does not stop the others: when they are done, the first error is raised, and its `completions` has
        the completion or the error of each prompt.
        """
        single = is_prompt(prompts)
        waiter, requests = Waiter(), list[Request]()
        try:
            self._submit([prompts] if single else prompts, params, waiter, priority=priority, into=requests)  # type: ignore[list-item, arg-type]
            self._runner.run_until(self, waiter, requests, lambda: not waiter.n_unfinished)
        except BaseException:
            self._runner.cancel(requests)
            raise
        completions = collect_completions(requests)
        return completions[0] if single else completions

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> Completion:
        """Generate the assistant's next message in a chat.

        Only the tokens that changed since an earlier turn of the chat are prefilled: the rest is cached.

        messages: dicts with a role and a content, in OpenAI's format.
        params: None for `get_default_sampling_params()`.
        tools: functions that the model may call, mostly in OpenAI's format.
        chat_template_kwargs: variables of the template, such as {"enable_thinking": False}; each overrides the
            LLM's default for the same variable.

        Raises InvalidRequestError for messages that the template refuses, and the errors of `generate`.
        """
        params = self.get_default_sampling_params() if params is None else params
        return self.generate(Chat(messages, tools, chat_template_kwargs), params, priority=priority)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> Stream:
        """Generate the assistant's next message piece by piece. Takes the arguments of `chat`."""
        params = self.get_default_sampling_params() if params is None else params
        return self.stream(Chat(messages, tools, chat_template_kwargs), params, priority=priority)

    def _submit(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        waiter: Waiter,
        *,
        priority: int = 0,
        max_unread: int | None = None,
        into: list[Request] | None = None,
        branch_points: Sequence[Sequence[int]] = (),
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        """Check prompts and params, and submit a request to the engine for each completion.

        Private to pymtp: AsyncLLM and the benchmarks use it too. The requests of one prompt (n above 1) are adjacent in
        the returned list. Raises the errors of `generate`.

        max_unread: the largest number of unread pieces of a request, which pauses at that number; None if no pieces are
            read.
        into: a list that gets the requests before the engine does, so that they can be cancelled if a signal handler
            raises.
        branch_points: for each prompt, the numbers of tokens after which later prompts are expected to differ from it.
            A Chat adds its own branch points.
        saver: writes the state of the prompt to a file. With a saver, `prompts` must be one prompt.
        """
        self._runner.refuse_reentry(self)
        cancels = self.context.cancels  # read now: a cancel() during the checks below cancels these requests too
        priority = read_int("priority", priority, -(2**31))
        branch_points = branch_points if saver is None else [saver.checkpoints]
        if params is None or isinstance(params, SamplingParams):
            params_list: Sequence[SamplingParams] = [params or SamplingParams()] * len(prompts)
        elif isinstance(params, Sequence):
            params_list = params
        else:
            raise InvalidRequestError(f"params must be SamplingParams, or a list of them, not {type(params).__name__}")
        if len(params_list) != len(prompts):
            raise InvalidRequestError(f"{len(params_list)} params for {len(prompts)} prompts")
        for one in params_list:
            if not isinstance(one, SamplingParams):
                raise InvalidRequestError(f"params must be SamplingParams, not {type(one).__name__}")
        checked = [self._checked(prompt, one) for prompt, one in zip(prompts, params_list, strict=True)]
        requests = [] if into is None else into
        requests += [
            Request(
                self.model,
                prompt.tokens,
                one,
                waiter,
                priority=priority,
                max_unread=max_unread,
                seed_offset=i,
                group=group,
                branch_points=(*prompt.branch_points, *more),
                saver=saver,
                thinking=thinking,
            )
            for prompt, one, more, source in zip(
                checked, params_list, branch_points or [()] * len(checked), prompts, strict=True
            )
            for thinking in [plan_thinking(self.model, prompt, one, self.context.n_ctx, calls=has_tools(source))]
            for group in [object() if one.n > 1 else None]
            for i in range(one.n)
        ]
        for request in requests:
            self._warm_up.done = True  # no warm-up any more: the rounds of requests are timed instead
            self._engine.submit(request, cancels)
        return requests

    def _checked(self, prompt: Prompt, params: SamplingParams) -> ChatPrompt:
        if isinstance(prompt, Chat):
            checked = self.chat_prompts.prompt(apply_thinking_budget(prompt, params))
        elif isinstance(prompt, ChatPrompt):
            checked = prompt._replace(tokens=self._prompt_tokens(prompt.tokens))
        else:
            checked = ChatPrompt(self._prompt_tokens(prompt), ())
        if not checked.tokens:
            raise InvalidRequestError("the prompt is empty")
        self._engine.check(checked.tokens)
        return checked

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokenize a string, or check token ids. Raises InvalidRequestError for ids outside the vocabulary."""
        if isinstance(prompt, str):
            return self.model.tokenize(prompt)
        tokens = _token_ids(prompt)
        self.model.check_tokens(tokens)
        return tokens


def _token_id(token: object) -> int:
    if isinstance(token, bool):
        raise TypeError
    return index(token)  # type: ignore[arg-type]


def _token_ids(prompt: Sequence[int]) -> list[int]:
    with suppress(TypeError):
        if not isinstance(prompt, (bytes, bytearray, Mapping, Set)):  # they may yield numbers, but are not token ids
            return [_token_id(token) for token in prompt]
    raise InvalidRequestError(f"a prompt is a string or token ids, not {shown(prompt)}")


def check_stream(params: object) -> None:
    """Raise InvalidRequestError for params that a stream cannot have: a list of params, or n above 1."""
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"params of a stream must be SamplingParams, not {type(params).__name__}")
    if params is not None and params.n > 1:
        raise InvalidRequestError(f"a stream has one completion, not n={params.n}: use generate")


def is_prompt(prompts: object) -> bool:
    """Return whether `prompts` is one prompt: a string, a chat, or a sequence whose first element is not a prompt.

    Raises InvalidRequestError for other types.
    """
    if isinstance(prompts, (str, Chat, ChatPrompt)):
        return True
    if not isinstance(prompts, (Sequence, np.ndarray)):
        raise InvalidRequestError(f"prompts are strings or sequences of token ids, not {type(prompts).__name__}")
    if isinstance(prompts, np.ndarray) and prompts.ndim == 0:
        raise InvalidRequestError(f"prompts are strings or sequences of token ids, not {shown(prompts)}")
    return len(prompts) == 0 or not isinstance(prompts[0], (Sequence, np.ndarray, Chat))
