"""The LLM: a loaded model that generates, streams and chats."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from pymtp.chat import Chat, ChatTemplate, GivenToolChoice, Message, Tools
from pymtp.chat.images import with_image_paths
from pymtp.chat.prompt import ChatPrompt, ChatPrompts
from pymtp.chat.sampling_defaults import default_chat_params, read_sampling_defaults
from pymtp.context.context import Context
from pymtp.context.gpu_layers import planned_layers
from pymtp.context.host_memory import default_cache_bytes
from pymtp.drafting.depth import RoundCosts
from pymtp.drafting.text_drafts import TextChoice
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.embedder import Embedder, Pooling
from pymtp.engine.engine import Engine
from pymtp.engine.image_encoder import CACHE_SHARE, ImageEncoder, ImageProjector, PromptImages
from pymtp.engine.keywords import SamplingKeywords, with_keywords
from pymtp.engine.prefix_files import Path, PrefixFiles
from pymtp.engine.prepare import Params, Prompt, RequestMaker
from pymtp.engine.request import Completion, Request, Waiter, collect_completions
from pymtp.engine.rounds import HeadCheck
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.engine.stream import Stream
from pymtp.engine.thread import Closable, EngineThread
from pymtp.engine.warm_up import WarmUp
from pymtp.errors import CancelledError, ClosedError, InvalidRequestError
from pymtp.hub.from_pretrained import HubMixin
from pymtp.model.model import TAPS, Model
from pymtp.native.process import refuse_copies
from pymtp.options import LLMOptions, takes_keywords
from pymtp.sampling import SamplingParams
from pymtp.stats import Figures
from pymtp.validation import shown

log = logging.getLogger(__name__)


class LLM(HubMixin):
    """A loaded model with its contexts, for text generation with multi-token-prediction drafts.

        llm = pymtp.LLM("model.gguf", n_ctx=8192)
        completion = llm.generate("def fibonacci(n):", pymtp.SamplingParams(max_tokens=64))

    `generate` and `chat` return completions, `stream` and `stream_chat` return them piece by piece; `save_prefix` and
    `load_prefix` keep the state of a long prompt in a file. Drafts make generation faster and never change the text.

    Threads: several threads may call an LLM at the same time. Their requests run in one batch, up to n_seq_max at once,
    on a thread of the LLM. A request generates the same text alone and beside other requests.

    Signals: Ctrl-C, and any other exception that a handler raises, ends the call of the main thread only. A handler may
    call cancel() and close(), and no other method.

    Closing: close() waits for the running requests. After close(), methods that need the model raise ClosedError.

    Fork: on the CPU, a child process made by fork may use the LLM and make new ones. If the LLM was computing at the
    fork, the child's LLM is closed. With a GPU, start processes by "spawn" and load the model in each.

    model: the loaded Model. sampling_defaults: the sampling values that the model's file recommends
        (`general.sampling.*`), by the names of SamplingParams. A warning in the log names each key that is ignored.
    """

    @takes_keywords(LLMOptions)
    def __init__(self, options: LLMOptions) -> None:
        """
        Load the model and make its contexts. The keywords are the fields of `pymtp.options.LLMOptions`.

        Raises ModelLoadError for a file that cannot be loaded, InvalidRequestError for values outside their range.
        """
        self._load(options)

    @classmethod
    def from_options(cls, options: LLMOptions, *, warm_up_later: bool = False) -> LLM:
        """Load the model of options that are made already, and make its contexts.

        warm_up_later: leave the first timings for `draft_tokens="auto"` to the owner, who warms up while it is idle.

        Raises the errors of the constructor.
        """
        llm = cls.__new__(cls)
        llm._load(options, warm_up_later=warm_up_later)
        return llm

    def _load(self, options: LLMOptions, *, warm_up_later: bool = False) -> None:
        given = options.model
        options.mmproj_bytes()  # loading a model may take minutes: a missing projector is found before
        self.model = given if isinstance(given, Model) else _load_model(given, options)
        self._images: ImageEncoder | None = None
        self.sampling_defaults, notes = read_sampling_defaults(self.model.metadata)
        for note in notes:
            log.warning("%s", note)
        self._context = Context(self.model, options)
        drafts = self._context.draft_tokens
        costs = RoundCosts() if options.draft_tokens == "auto" else None
        depth = BatchDepth(
            self._context.n_ctx, self._context.n_ubatch, drafts, costs, _text_choice(self._context, costs)
        )
        cache_bytes = options.cache_bytes
        budget = default_cache_bytes(self._context.memory()) if cache_bytes is None else cache_bytes
        if options.mmproj:
            kept = budget // CACHE_SHARE if options.cache_prompt else 0
            self._images = ImageEncoder(_load_projector(self.model, options, self._context), kept)
        other_tap = TAPS[self._context.tap == TAPS[0]]
        head_check = HeadCheck(self.model.file_names, f'tap="{other_tap}", another file, or draft_tokens=0')
        self._engine = Engine(
            self._context,
            depth,
            cache_prompt=options.cache_prompt,
            cache_bytes=budget,
            head_check=head_check,
            images=self._images,
        )
        warm_up = WarmUp(depth, options.timing_key(drafts=drafts), done=costs is None or not drafts)
        owned: list[Closable] = [] if self._images is None else [self._images]
        if given is not self.model:
            owned.append(self.model)
        self._engine_thread = EngineThread(self._engine, self._context, warm_up, owned)
        self._maker = RequestMaker(
            self.model, self._context, options.template_source, options.chat_template_kwargs or {}, self._images
        )
        self._prefix_files = PrefixFiles(self._maker, self._engine_thread, self._context, self._images)
        self._embedder = Embedder(self._context, options, self._engine_thread, self._images)
        if not warm_up_later:
            self._engine_thread.warm_up_now()
        head = (
            None if not self.model.has_head else "own" if self.model.head is None else os.path.basename(self.model.head)
        )
        self._repr = (
            f"LLM({self.model.path.name!r}, n_ctx={self._context.n_ctx}, n_seq_max={self._context.n_seq_max}, "
            f"head={head!r}, draft_tokens={'auto' if costs else drafts!r})"
        )

    def __repr__(self) -> str:
        return getattr(self, "_repr", "LLM(not loaded)")  # a debugger may show an LLM whose constructor has not ended

    @property
    def context(self) -> Context:
        """Return the context of the target and the head. Raises ClosedError after close()."""
        if self._engine_thread.freed:
            raise ClosedError("the LLM is closed")
        return self._context

    @property
    def sees_images(self) -> bool:
        """Return whether chats may have images: the LLM has a projector."""
        return self._images is not None

    @property
    def mmproj(self) -> str | None:
        """Return the path of the projector's file; None without one."""
        return None if self._images is None else str(self._images.projector.path)

    @property
    def chat_template(self) -> ChatTemplate:
        """Return the chat template that the LLM was given, or else the template of the model's file.

        Raises InvalidRequestError if there is no template, or if that of the file cannot be compiled.
        """
        return self._maker.chat_template

    @property
    def template_source(self) -> str | None:
        """Return the source of `chat_template`, even if it cannot be compiled; None without a template."""
        return self._maker.template_source

    @property
    def chat_prompts(self) -> ChatPrompts:
        """Return the ChatPrompts of the LLM: `chat_prompts.prompt(Chat(…))` renders and tokenizes a chat.

        Raises the errors of `chat_template`.
        """
        return self._maker.chat_prompts

    def cancel(self) -> None:
        """Cancel all running calls and open streams: safe from any thread and any handler of a signal.

        The calls end after the current ubatch, or after their prompts are checked. Each unfinished completion has
        finish_reason "cancelled", also if its request was still waiting; `embed` raises CancelledError. Later calls are
        not affected. Does nothing without a running call, and after close().
        """
        self._engine_thread.cancel_all()

    def figures(self) -> Figures:
        """Return the counters of the engine: running and waiting requests, tokens/s, acceptance, the prefix cache."""
        return self._engine.figures()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the params that `chat` uses by default: SamplingParams() with the values of `sampling_defaults`.

        max_tokens is None: a completion ends where the model ends it or the context is full. The temperature is 0.7 if
        the model's file recommends none.
        """
        return default_chat_params(self.sampling_defaults)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Stream:
        """Generate the completion of one prompt piece by piece. Takes the arguments of `generate`.

        Raises the errors of `generate`, before the first piece, and InvalidRequestError for a list of params and for n
        above 1.
        """
        if keywords:
            params = with_keywords("LLM.stream", params, keywords)
        check_stream(params)
        requests = self._make_requests([prompt], params, Waiter(), priority=priority, max_unread=MAX_UNREAD_PIECES)
        self._add_prompt_logprobs(requests)
        return Stream(self, self._engine_thread, requests[0])

    @overload  # a string is a sequence of strings, too
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: Params = None, *, priority: int = 0, **keywords: Unpack[SamplingKeywords]
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Completion | list[Completion]:
        """Generate the completion of one prompt, or a list of completions for a list of prompts.

        prompts: a prompt is a string or a sequence of token ids. The completions have the order of the prompts.
        params: SamplingParams for all prompts, or a list with one for each prompt.
        priority: of the waiting requests, those with the lowest number run first.
        keywords: fields of SamplingParams, such as max_tokens=5; they replace those of `params`.

        Raises TypeError for an unknown keyword, InvalidRequestError for an empty prompt, a token id outside the
        vocabulary and params that are refused, ContextFullError for a prompt longer than n_ctx. All prompts are checked
        before the first runs. A request that fails later does not stop the others: when they are done, the first error
        is raised, and its `completions` has the completion or the error of each prompt.
        """
        if keywords:
            params = with_keywords("LLM.generate", params, keywords)
        single = is_prompt(prompts)
        waiter = Waiter()
        requests = self._make_requests([prompts] if single else prompts, params, waiter, priority=priority)  # type: ignore[list-item, arg-type]
        self._add_prompt_logprobs(requests)
        self._engine_thread.run(requests, waiter)
        completions = collect_completions(requests)
        return completions[0] if single else completions

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: GivenToolChoice = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Completion:
        """Generate the assistant's next message in a chat: `reasoning`, `content` and `tool_calls` of the completion.

        Only the tokens that changed since an earlier turn of the chat are prefilled: the rest is cached.

        messages: dicts with a role and a content, in OpenAI's format. With mmproj=… , the content may be a list with
            images among its parts: {"type": "image", "image": …} with the path or the bytes of a PNG, JPEG, GIF, WebP
            or BMP file, an image of Pillow, or an array of uint8 of shape (height, width, 3).
        params: None for `get_default_sampling_params()`. A json_schema holds for the content, after the thinking.
        tools: functions that the model may call, in OpenAI's format. A grammar makes their calls valid.
        tool_choice: "auto" for text or calls, "required" for calls, "none" for text, or a function by its name:
            {"type": "function", "function": {"name": …}}. None is "auto".
        chat_template_kwargs: variables of the template, such as {"enable_thinking": False}; each overrides the
            LLM's default for the same variable.
        keywords: fields of SamplingParams, such as max_tokens=500; they replace those of `params`.

        Raises InvalidRequestError for messages that the template refuses, for tools and a tool_choice in another form,
        and for a grammar beside tools; and the errors of `generate`.
        """
        params = with_keywords("LLM.chat", params, keywords, self.get_default_sampling_params)
        chat = Chat(with_image_paths(messages), tools, chat_template_kwargs, tool_choice)
        return self.generate(chat, params, priority=priority)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        tool_choice: GivenToolChoice = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
        **keywords: Unpack[SamplingKeywords],
    ) -> Stream:
        """Generate the assistant's next message piece by piece: `reasoning`, `content` and `events` of the pieces.

        Takes the arguments of `chat`. `completion` of the stream has the whole message.
        """
        params = with_keywords("LLM.stream_chat", params, keywords, self.get_default_sampling_params)
        chat = Chat(with_image_paths(messages), tools, chat_template_kwargs, tool_choice)
        return self.stream(chat, params, priority=priority)

    def create_chat_completion(self, messages: Sequence[Message], **fields: Any) -> Any:
        """Answer a chat as OpenAI's API and llama-cpp-python do: with a dict, or with stream=True its chunks.

        fields: those of a body of /v1/chat/completions, such as tools, response_format, max_tokens and stream, with the
            same defaults as in `pymtp serve`; and logits_processor, as in SamplingParams. None counts as not given.

        Returns a chat.completion; with stream=True an iterator over the objects chat.completion.chunk.

        Raises TypeError for an unknown field, InvalidRequestError for one that is refused, and the errors of `chat`.
        """
        return self._create("create_chat_completion", "/v1/chat/completions", {"messages": messages, **fields})

    def create_completion(self, prompt: str | Sequence[int], **fields: Any) -> Any:
        """Answer a prompt as OpenAI's API and llama-cpp-python do: with a dict, or with stream=True its chunks.

        fields: those of a body of /v1/completions; see `create_chat_completion`. max_tokens is 16 by default.
        """
        return self._create("create_completion", "/v1/completions", {"prompt": prompt, **fields})

    def _create(self, name: str, url: str, fields: Mapping[str, Any]) -> Any:
        from pymtp.openai.in_process import create  # here: many programs do without, and it takes time to import

        return create(self, f"LLM.{name}", url, fields)

    def save_prefix(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """Prefill a prompt, and save its K and V and states to a file, from which `load_prefix` loads them.

        Prompts that begin with the same tokens then continue from the saved state, in this process or in another one.
        Other calls run meanwhile. Tokens in the prefix cache are not prefilled again. Returns the number of saved
        tokens.

        prompt: a string, token ids, a chat's messages, or a Chat. For messages, the saved tokens are those with which
            every continuation of the chat begins, even one whose last message is longer.
        priority: as for `generate`.

        The file is written under another name first, so that after a crash the path has either the old file or the
        complete new one. At most 16 MiB of the file are in memory at a time, in addition to the states.

        Raises the errors of `generate`, OSError if the file cannot be written, and CancelledError after cancel(): then
        the old file stays.
        """
        return self._prefix_files.save(prompt, path, priority=priority)

    def load_prefix(self, path: Path) -> int:
        """Load a prefix that `save_prefix` saved: prompts that begin with its tokens do not prefill them again.

        Logits, drafts and text are the same as for a prompt that is prefilled from its beginning. Returns the number of
        tokens of the file.

        The prefix is in host memory, and counts in cache_bytes: other prefixes are evicted for it, and it is evicted
        when it was not used for long. Loading a file again costs nothing. Other calls wait while the file is read.

        Raises InvalidRequestError for a file that is damaged, cut short, or in a newer format than this pymtp reads,
        that was made with another model or with other options, or that is larger than cache_bytes; ContextFullError for
        a file with more tokens than n_ctx; and OSError for a file that cannot be read. The message says what does not
        fit.
        """
        return self._load_prefix(path)

    def _load_prefix(self, path: Path, *, kept: bool = False) -> int:
        """Load a prefix; with `kept` it is never evicted. Private to pymtp."""
        return self._prefix_files.load(path, kept=kept)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, pooling: Pooling = "last") -> NDArray[np.float32]:
        """Compute the embedding of one prompt, shape (n_embd,), or of a list of prompts, shape (len(prompts), n_embd).

        An embedding is the target's hidden state after the final norm, scaled to length 1. It is the same alone and
        beside other requests, which go on meanwhile. A model that was not trained for embeddings tells similar texts
        from others less well than one that was.

        prompts: strings or sequences of token ids, as for `generate`.
        pooling: "last" for the state of the last token, "mean" for the mean over all tokens.

        The first call makes a context for one sequence, which stays until close(). Raises InvalidRequestError for an
        empty prompt, a chat, a token id outside the vocabulary and another pooling, ContextFullError for a prompt
        longer than n_ctx or than the free memory has room for.
        """
        return self._embed(prompts, pooling, lambda: False)

    def _embed(
        self, prompts: Prompt | Sequence[Prompt], pooling: Pooling, cancelled: Callable[[], bool]
    ) -> NDArray[np.float32]:
        """Compute embeddings; raise CancelledError soon after cancel() or a true `cancelled`. Private to pymtp."""
        n_cancels = self.context.cancels
        single = is_prompt(prompts)
        several = [prompts] if isinstance(prompts, Chat) or single else prompts
        tokens = [self._embedding_tokens(prompt) for prompt in several]

        def ended() -> bool:
            return cancelled() or self.context.cancels > n_cancels

        vectors = [self._embedder.embed(one, pooling, ended) for one in tokens]
        return vectors[0] if single else np.array(vectors, np.float32).reshape(-1, self.model.n_embd)

    def _add_prompt_logprobs(self, requests: Sequence[Request], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Compute the log-probabilities of prompts for the requests that ask for them, once for each prompt.

        Ends early after cancel(), which ends the requests too, and soon after `cancelled` returns true. Private to
        pymtp. Raises ContextFullError for a prompt for which there is no memory.
        """
        n_cancels = max((request.cancel_count or 0 for request in requests), default=0)
        last: Request | None = None
        with suppress(CancelledError):
            for request in requests:
                if request.params.prompt_logprobs is None:
                    continue
                if last is not None and request.group is not None and request.group is last.group:
                    request.prompt_logprobs = last.prompt_logprobs
                else:
                    request.prompt_logprobs = self._embedder.logprobs(
                        request.prompt,
                        request.params.prompt_logprobs,
                        lambda: cancelled() or self.context.cancels > n_cancels,
                    )
                last = request

    def _embedding_tokens(self, prompt: object) -> list[int]:
        """Return the tokens of a prompt to embed. Raises the errors of `embed`. Private to pymtp, for the server."""
        if isinstance(prompt, (Chat, ChatPrompt)):
            raise InvalidRequestError("a prompt to embed is a string or token ids, not a chat")
        self._engine_thread.check_usable()
        tokens = self._maker.prompt_tokens(prompt)  # type: ignore[arg-type] # checks the type
        self._maker.check_length(tokens)
        return tokens

    def _embedding_images(self, prompt: ChatPrompt) -> PromptImages:
        """Return the images of a prompt to embed. Private to pymtp, for the server."""
        self._engine_thread.check_usable()
        return self._maker.check_images(prompt)

    def _make_requests(
        self, prompts: Sequence[Prompt], params: Params, waiter: Waiter, **options: Any
    ) -> list[Request]:
        """Check prompts and params, and make requests; see `RequestMaker.make`."""
        self._engine_thread.check_usable()
        return self._maker.make(prompts, params, waiter, **options)

    def _submit(self, prompts: Sequence[Prompt], params: Params, waiter: Waiter, **options: Any) -> list[Request]:
        """Submit requests for a caller that runs `_engine.step` itself: the engine's thread sleeps on."""
        requests = self._make_requests(prompts, params, waiter, **options)
        for request in requests:
            self._engine.submit(request)
        return requests

    def close(self) -> None:
        """Refuse new calls, wait for the requests that run, and free the contexts and the model.

        Call `cancel()` first to wait less. Streams, and requests that wait for a sequence, end with ClosedError. In a
        handler that interrupts a call, close() cancels that call, whose end frees everything. A second close()
        only waits.
        """
        self._engine_thread.close()
        self._embedder.close()

    @property
    def closed(self) -> bool:
        """Return whether close() was called."""
        return self._engine_thread.closed

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ may have failed
            self._engine_thread.free()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


def _text_choice(context: Context, costs: RoundCosts | None) -> TextChoice | None:
    """Return the choice between drafts from text and of the head; None without drafts from text."""
    if costs is None or not context.draft_text:
        return None
    return TextChoice(
        costs,
        n_seq_max=context.n_seq_max,
        max_text=context.draft_text,
        max_head=context.draft_tokens,
        max_rows=context.max_verify_rows,
    )


def _load_projector(model: Model, options: LLMOptions, context: Context) -> ImageProjector:
    """Load the projector of an LLM. Raises the errors of Projector."""
    assert options.mmproj
    from pymtp.model.projector import Projector  # here: most programs have no images

    return Projector(
        model,
        options.mmproj,
        offload=options.mmproj_offload,
        n_threads=context.options.threads,
        min_tokens=options.image_min_tokens,
        max_tokens=options.image_max_tokens,
    )


def _load_model(path: str | os.PathLike[str] | None, options: LLMOptions) -> Model:
    """Load the model of an LLM. Raises the errors of Model and, if n_gpu_layers is "auto", those of plan_memory."""
    if options.n_gpu_layers == "auto":
        layers = planned_layers(path, options, options, mtp=options.takes_head, reserved=options.projector_memory())
        options = replace(options, n_gpu_layers=layers)
    return Model(path, mtp=options.takes_head, options=options)


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
