"""One object, plain results: load a model, generate, stream, chat."""

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
from pymtp.chat.thinking import chat_of_budget, has_tools, thinking_of
from pymtp.context.context import Context
from pymtp.context.gpu_layers import fitting_model
from pymtp.context.host_memory import default_cache_bytes, read_cache_bytes
from pymtp.context.options import check_keywords
from pymtp.drafting.depth import MAX_AUTO, Costs
from pymtp.drafting.head_check import DraftWatch
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.collect import collected
from pymtp.engine.engine import Engine
from pymtp.engine.engine_stats import Figures
from pymtp.engine.prefix_files import PrefixFiles, Prompt
from pymtp.engine.request import Caller, Completion, Request
from pymtp.engine.scheduler import READ_AHEAD
from pymtp.engine.stream import Stream
from pymtp.engine.thread import Turns
from pymtp.engine.warm_up import FirstLaunches
from pymtp.errors import ClosedError, InvalidRequestError
from pymtp.hub.from_pretrained import FromHub
from pymtp.model.model import TAPS, Model
from pymtp.model.options import MAY_BE_NONE, NAMES
from pymtp.model.rope import NAMES as ROPE_NAMES
from pymtp.model.rope import RopeOptions
from pymtp.native.cores import default_threads
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import SamplingParams
from pymtp.sampling_defaults import chat_params, model_sampling
from pymtp.validation import flag, in_range, shown

Params = SamplingParams | Sequence[SamplingParams] | None
log = logging.getLogger(__name__)


class LLM(PrefixFiles, FromHub):
    """A model with its contexts, ready to generate.

    Calls from several threads run together, as many texts at once as n_seq_max says, and so do streams: whoever waits
    for tokens runs the engine for all. A text is the same alone and in company. Ctrl-C, and what else a signal handler
    raises, ends the call of the main thread; others go on. The handler itself may cancel() or close() the LLM, no more.
    Methods that need the model raise ClosedError after close(); close() waits for the calls that run.

    On the CPU, a child made by fork may use the LLM and make others. Where another thread was in a call at the fork,
    the child's LLM is closed. With a GPU, start processes by "spawn", and load the model in each.

    sampling_defaults: how the model's makers want it sampled, as far as its file says (`general.sampling.*`), by the
        names of SamplingParams. A warning in the log names a key that is left out.
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
        model: a GGUF file; None for the small model that ships with pymtp. Or a loaded Model, which several LLMs may
            share: it stays open after close(), and was given its own n_gpu_layers and ModelOptions.
        draft_tokens: tokens to draft a round, 0 for plain decoding. "auto" chooses anew for each round, by what was
            accepted and what rounds took, from 0 to 7 (less where n_batch and n_ubatch have no room for 7 and 2); 0
            where the file has no multi-token-prediction head. A model's first LLM with "auto" times a few launches.
        n_seq_max: texts that are written at once; more wait for their turn. Each takes the memory of n_ctx tokens, and
            of its recurrent states.
        cache_prompt: prompts go on from what was read and written before, where they begin with the same tokens.
        cache_bytes: host memory for what sequences do not hold any more. None for a quarter of what the machine has, at
            most 8 GiB and at most half of what the model leaves; with 0, prompts go on only from what sequences hold.
        chat_template: for chats in place of the file's own: a text in Jinja, or a path of one.
        chat_template_kwargs: variables of the template, such as {"enable_thinking": False}, for chats that do not give
            them themselves.
        n_gpu_layers: layers on the GPU, -1 or None for all; "auto" for as many as fit with what the context takes.
        placing: further fields of ModelOptions and RopeOptions. The others: see `Context`.

        Raises ModelLoadError for a file that cannot be loaded, InvalidRequestError for values outside their range.
        """
        super().__init__()
        of_context: dict[str, Any] = {
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
        check_keywords({**of_context, **sizes, "n_threads": n_threads, "draft_tokens": draft_tokens})
        self._own_template = read_template(chat_template)
        self._template_variables = read_variables(chat_template_kwargs)
        cache_bytes = read_cache_bytes(cache_bytes)
        cache_prompt = flag("cache_prompt", cache_prompt)
        of_model = {name: placing.pop(name) for name in NAMES & placing.keys()}
        of_model = {name: value for name, value in of_model.items() if value is not None or name not in MAY_BE_NONE}
        times_later = placing.pop("_times_later", False)  # within pymtp only
        if n_gpu_layers is not None:
            of_model["n_gpu_layers"] = n_gpu_layers
        if unknown := placing.keys() - ROPE_NAMES:
            raise TypeError(f"LLM() got an unexpected keyword argument {min(unknown)!r}")
        of_context["rope"] = RopeOptions(**placing)
        auto = draft_tokens == "auto"
        self._shares_model = isinstance(model, Model)
        if isinstance(model, Model):
            if of_model:
                raise InvalidRequestError(f"a Model is loaded already: {', '.join(of_model)} must be given to it")
            self.model = model
        else:
            self.model = fitting_model(model, of_model, draft_tokens=draft_tokens, **sizes, **of_context)
        self.sampling_defaults, notes = model_sampling(self.model.metadata)
        for note in notes:
            log.warning("%s", note)
        room = [index(n) - 1 for n in (n_batch, n_ubatch)]
        most = max(0, min(MAX_AUTO, *room)) if self.model.mtp else 0
        depends_on: dict[str, Any] = {  # what rounds cost
            "n_threads": default_threads() if n_threads is None else n_threads,
            "draft_tokens": most if auto else draft_tokens,
            **of_context,
        }
        self._context: Context | None = Context(self.model, **sizes, **depends_on)
        costs = Costs() if auto else None
        depth = BatchDepth(self._context.n_ctx, self._context.n_ubatch, self._context.draft_tokens, costs)
        budget = default_cache_bytes(self._context.memory()) if cache_bytes is None else cache_bytes
        other_tap = TAPS[(self.model.tap if tap == "auto" else tap) == TAPS[0]]
        watch = DraftWatch(self.model.file_names, f'tap="{other_tap}", another file, or draft_tokens=0')
        self.engine = Engine(self.context, depth, cache_prompt=cache_prompt, cache_bytes=budget, drafts=watch)
        self.turns = Turns(self.engine)
        kind = (n_seq_max, *depends_on.values())
        self.first_launches = FirstLaunches(depth, kind, done=costs is None or not most)
        if not times_later:
            try:
                self.first_launches.time(self._context)
            except BaseException:  # Ctrl-C, perhaps, and an interpreter that keeps what was raised
                self.close()
                raise
        # one lock for both: of two, a thread in the context's call could hold one, and a thread in the LLM's the other
        self._lock = self._context._lock

    @property
    def context(self) -> Context:
        """The target and draft context. Raises ClosedError after close()."""
        if self._context is None:
            raise ClosedError("the LLM is closed")
        return self._context

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's template, or the one that the LLM was given. Raises InvalidRequestError when there is none, and
        when the model's cannot be compiled."""
        return ChatTemplate(self.model, self._own_template, self._template_variables)

    @property
    def template_source(self) -> str | None:
        """The text of that template, also where it cannot be compiled; None when there is none."""
        return self.model.chat_template if self._own_template is None else self._own_template

    @cached_property
    def chat_prompts(self) -> ChatPrompts:
        return ChatPrompts(self.model, self.chat_template)

    def _free(self) -> None:
        if self._context is not None:
            self.engine.close(ClosedError("the LLM is closed"))
            self._context.close()
            self._context = None
            if not self._shares_model:
                self.model.close()

    def cancel(self) -> None:
        """From any thread and any handler, at any time: ends all calls that run, within a ubatch, or once their prompts
        are looked at. What they had not finished has finish_reason "cancelled", further prompts of a list too, and open
        streams. Later calls do not know of it. Harmless where no call runs, and after close()."""
        context = self._context
        if context is not None:
            context.cancel()

    def figures(self) -> Figures:
        """What runs and waits, and what was done so far."""
        return self.engine.figures()

    def get_default_sampling_params(self) -> SamplingParams:
        """Make the params of a chat that is given none: those of SamplingParams(), with `sampling_defaults`, up to the
        model's end or that of the context, and with a temperature of 0.7 where the model's file names none."""
        return chat_params(self.sampling_defaults)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0) -> Stream:
        """Generates piece by piece. Raises what `generate` raises, before the first piece; for a list of params and
        n above 1 InvalidRequestError."""
        check_stream(params)
        found: list[Request] = []
        try:
            self.requests([prompt], params, Caller(), priority=priority, ahead=READ_AHEAD, into=found)
            return Stream(self, self.turns, found[0])
        except BaseException:  # of a signal handler: nobody will read it
            self.turns.give_up(found)
            raise

    @overload  # a string is a sequence of strings, too
    def generate(self, prompts: Prompt, params: Params = None, *, priority: int = 0) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: Sequence[Prompt], params: Params = None, *, priority: int = 0) -> list[Completion]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, priority: int = 0
    ) -> Completion | list[Completion]:
        """One prompt, a string or token ids: one Completion. A list of prompts: a list, in the same order.

        params: for all prompts, or a list with one for each.
        priority: where others wait too, those with a lower one come first.

        Raises InvalidRequestError for an empty prompt, a token id outside the vocabulary and params that are refused,
        ContextFullError for a prompt longer than n_ctx. All prompts are looked at before the first is run. What fails
        later fails alone: when all others are done, the first such error is raised, and its `completions` has what came
        of each prompt.
        """
        one = is_prompt(prompts)
        caller, found = Caller(), list[Request]()
        try:
            self.requests([prompts] if one else prompts, params, caller, priority=priority, into=found)  # type: ignore[list-item, arg-type]
            self.turns.wait(self, caller, found, lambda: not caller.unended)
        except BaseException:
            self.turns.give_up(found)
            raise
        completions = collected(found)
        return completions[0] if one else completions

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> Completion:
        """The assistant's next turn. What changed of the chat since an earlier turn is read, no more.

        params: None for `get_default_sampling_params()`.
        tools: functions that the model may call, mostly in OpenAI's format.
        chat_template_kwargs: further variables of the template, such as {"enable_thinking": False}. Where one is not
            given, the LLM's holds.

        Raises InvalidRequestError for what the template refuses, and what `generate` raises.
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
        """The assistant's next turn, piece by piece. Takes what `chat` does."""
        params = self.get_default_sampling_params() if params is None else params
        return self.stream(Chat(messages, tools, chat_template_kwargs), params, priority=priority)

    def requests(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        caller: Caller,
        *,
        priority: int = 0,
        ahead: int | None = None,
        into: list[Request] | None = None,
        marks: Sequence[Sequence[int]] = (),
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        """Looks at prompts and params, and hands the engine a request for each completion: those of a prompt one after
        the other. Raises as `generate`.

        marks: of each prompt, after how many of its tokens prompts to come are expected to part from it. A Chat has its
            own.
        saver: for one prompt that is to be saved.
        into: a list that gets the requests before the engine does, so that they can be given up where a signal handler
            raises.
        """
        self.turns.refuse_within(self)
        cancels = self.context.cancels  # by now: one that comes while prompts are looked at means these, too
        priority = in_range("priority", priority, -(2**31))
        marks = marks if saver is None else [saver.places]
        if params is None or isinstance(params, SamplingParams):
            each: Sequence[SamplingParams] = [params or SamplingParams()] * len(prompts)
        elif isinstance(params, Sequence):
            each = params
        else:
            raise InvalidRequestError(f"params must be SamplingParams, or one for each, not {type(params).__name__}")
        if len(each) != len(prompts):
            raise InvalidRequestError(f"{len(each)} params for {len(prompts)} prompts")
        for one in each:
            if not isinstance(one, SamplingParams):
                raise InvalidRequestError(f"params must be SamplingParams, not {type(one).__name__}")
        looked_at = [self._looked_at(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        found = [] if into is None else into
        found += [
            Request(
                self.model,
                prompt.tokens,
                one,
                caller,
                priority=priority,
                ahead=ahead,
                seed_offset=i,
                family=family,
                marks=(*prompt.marks, *more),
                saver=saver,
                thinking=thinking,
            )
            for prompt, one, more, given in zip(looked_at, each, marks or [()] * len(looked_at), prompts, strict=True)
            for thinking in [thinking_of(self.model, prompt, one, self.context.n_ctx, calls=has_tools(given))]
            for family in [object() if one.n > 1 else None]
            for i in range(one.n)
        ]
        for request in found:
            self.first_launches.done = True  # its rounds tell what they cost
            self.engine.submit(request, cancels)
        return found

    def _looked_at(self, prompt: Prompt, params: SamplingParams) -> ChatPrompt:
        if isinstance(prompt, Chat):
            found = self.chat_prompts.prompt(chat_of_budget(prompt, params))
        elif isinstance(prompt, ChatPrompt):
            found = prompt._replace(tokens=self.tokens_of(prompt.tokens))
        else:
            found = ChatPrompt(self.tokens_of(prompt), ())
        if not found.tokens:
            raise InvalidRequestError("the prompt is empty")
        self.engine.check(found.tokens)
        return found

    def tokens_of(self, prompt: str | Sequence[int]) -> list[int]:
        """Of a string; token ids that were looked at."""
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
        if not isinstance(prompt, (bytes, bytearray, Mapping, Set)):  # whose elements may be numbers
            return [_token_id(token) for token in prompt]
    raise InvalidRequestError(f"a prompt is a string or token ids, not {shown(prompt)}")


def check_stream(params: object) -> None:
    """Raises InvalidRequestError for what no stream can have: several completions, or a list of params."""
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"params of a stream must be SamplingParams, not {type(params).__name__}")
    if params is not None and params.n > 1:
        raise InvalidRequestError(f"a stream has one completion: n={params.n} is for generate")


def is_prompt(prompts: object) -> bool:
    """A string, a chat, or a sequence whose first element is no prompt itself."""
    if isinstance(prompts, (str, Chat, ChatPrompt)):
        return True
    if not isinstance(prompts, (Sequence, np.ndarray)):
        raise InvalidRequestError(f"prompts are strings or sequences of token ids, not {type(prompts).__name__}")
    if isinstance(prompts, np.ndarray) and prompts.ndim == 0:
        raise InvalidRequestError(f"prompts are strings or sequences of token ids, not {shown(prompts)}")
    return len(prompts) == 0 or not isinstance(prompts[0], (Sequence, np.ndarray, Chat))
