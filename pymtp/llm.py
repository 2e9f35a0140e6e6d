"""One object, plain results: load a model, generate, stream, chat."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from inspect import signature
from operator import index
from typing import Any, Literal, overload

import numpy as np

from pymtp.chat import ChatTemplate, Message
from pymtp.context import Context, physical_cores
from pymtp.depth import MAX_AUTO, AutoDepth, Costs, Depth, FixedDepth
from pymtp.errors import ClosedError, ContextFullError, InvalidRequestError
from pymtp.exclusive import Exclusive, alone
from pymtp.first_costs import first_costs
from pymtp.model import Model
from pymtp.request import Completion, Request
from pymtp.sampling import SamplingParams
from pymtp.stream import Stream
from pymtp.values import is_whole

Prompt = str | Sequence[int]


class LLM(Exclusive):
    """A model with its contexts, ready to generate.

    Calls from several threads take turns; a stream left open gives way to the next call. Ctrl-C, and what else a signal
    handler raises, ends the call that runs on the main thread. The handler itself may cancel() or close() the LLM, no
    more. All methods raise ClosedError after close(), but for cancel() and close().

    A forked child may use an LLM made with n_threads=1, unless another thread was in a call: OpenMP's threads and those
    that hold locks are not in the child. Start processes by "spawn" otherwise, and load the model in each.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | None = None,
        *,
        n_ctx: int = 8192,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        draft_tokens: int | Literal["auto"] = "auto",
        draft_vocab: int | Literal["auto", "all"] = "auto",
        tap: str = "auto",
        prefill: str = "fused",
        draws: str = "auto",
        cache_prompt: bool = True,
    ) -> None:
        """
        model: a GGUF file; None for the small model that ships with pymtp. Or a loaded Model, which several LLMs may
            share: it stays open after close(), and n_gpu_layers has no part.
        draft_tokens: tokens to draft a round, 0 for plain decoding. "auto" chooses anew for each round, by what was
            accepted and what rounds took, from 0 to 7 (less where n_batch and n_ubatch have no room for 7 and 2); 0
            where the file has no multi-token-prediction head. A model's first LLM with "auto" times a few launches.
        cache_prompt: go on from what the context holds where a prompt begins with it: all of the last prompt, and its
            completion but for the last token.
        n_gpu_layers: layers on the GPU, -1 for all. The others: see `Context`.

        Raises ModelLoadError for a file that cannot be loaded, InvalidRequestError for values outside their range.
        """
        super().__init__()
        self._active: Request | None = None
        self.cache_prompt = cache_prompt
        if isinstance(draft_tokens, str) and draft_tokens != "auto":
            raise InvalidRequestError(f'draft_tokens={draft_tokens!r} must be a whole number or "auto"')
        self._shares_model = isinstance(model, Model)
        self.model = (
            model if isinstance(model, Model) else Model(model, n_gpu_layers=n_gpu_layers, mtp=draft_tokens != 0)
        )
        self._costs = Costs()
        self._auto: dict[float, AutoDepth] = {}  # the last completion's at each temperature: acceptance depends on it
        self._is_auto = draft_tokens == "auto"
        # what n_batch and n_ubatch may be is for the context to say
        room = [index(n) - 2 for n in (n_batch, n_ubatch) if is_whole(n, 0)]
        most = max(0, min(MAX_AUTO, *room)) if self.model.mtp else 0
        depends_on: dict[str, Any] = {  # what rounds cost
            "n_threads": physical_cores() if n_threads is None else n_threads,
            "type_k": type_k,
            "type_v": type_v,
            "flash_attn": flash_attn,
            "draft_tokens": most if draft_tokens == "auto" else draft_tokens,
            "draft_vocab": draft_vocab,
            "tap": tap,
            "prefill": prefill,
            "draws": draws,
        }
        self._context: Context | None = Context(
            self.model, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch, **depends_on
        )
        if self._is_auto and most:
            try:
                first = first_costs(self.model, tuple(depends_on.values()), self._context)
            except BaseException:  # Ctrl-C, perhaps, and an interpreter that keeps what was raised
                self.close()
                raise
            self._costs.begin(first.verify, first.draft)
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
        """The model's template. Raises InvalidRequestError when it has none."""
        return ChatTemplate(self.model)

    def _free(self) -> None:
        if self._context is not None:
            if self._active is not None:
                self._active.cancel()
            self._context.close()
            self._context = None
            if not self._shares_model:
                self.model.close()

    def new_depth(self, temperature: float = 0.0) -> Depth:
        """How many drafts a round, for a new completion."""
        if not self._is_auto:
            return FixedDepth(self.context.draft_tokens)
        kind = min(2.0, round(temperature, 1))
        self._auto[kind] = AutoDepth(self._costs, self.context.draft_tokens, after=self._auto.get(kind))
        return self._auto[kind]

    def cancel(self) -> None:
        """From any thread and any handler, at any time: ends the call that runs, within a ubatch. What it had not
        finished has finish_reason "cancelled", further prompts of its list too. The next call forgets it. Harmless
        where no call runs, and after close()."""
        context = self._context
        if context is not None:
            context.cancel()

    @alone
    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Generates piece by piece. Raises what `generate` raises, before the first piece."""
        tokens = self._tokens(prompt)
        self.context.cancel(False)
        return Stream(self, self._open(tokens, params))

    @overload  # a string is a sequence of strings, too
    def generate(self, prompts: Prompt, params: SamplingParams | None = None) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[Completion]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """One prompt, a string or token ids: one Completion. A list of prompts: a list, in the same order.

        Raises InvalidRequestError for an empty prompt or a token id outside the vocabulary, ContextFullError for a
        prompt longer than n_ctx. All prompts are looked at before the first is run.
        """
        one = _is_prompt(prompts)
        completions = self._generate([prompts] if one else prompts, params)  # type: ignore[list-item, arg-type]
        return completions[0] if one else completions

    @alone
    def _generate(self, prompts: Sequence[Prompt], params: SamplingParams | None) -> list[Completion]:
        token_lists = [self._tokens(prompt) for prompt in prompts]
        self.context.cancel(False)
        completions = []
        for tokens in token_lists:
            request = self._open(tokens, params)
            while not request.ended:
                request.step()
            completions.append(request.completion)
        return completions

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The assistant's next turn. Raises InvalidRequestError for messages that the template refuses."""
        return self.generate(self.chat_template.render(messages), params)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Stream:
        """The assistant's next turn, piece by piece."""
        return self.stream(self.chat_template.render(messages), params)

    def _open(self, tokens: list[int], params: SamplingParams | None) -> Request:
        if self._active is not None:
            self._active.cancel()
        params = SamplingParams() if params is None else params
        self._active = Request(self.context, tokens, params, self.new_depth, cache_prompt=self.cache_prompt)
        return self._active

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.model.tokenize(prompt)
        else:
            try:
                tokens = [index(token) for token in prompt]
            except TypeError as error:
                raise InvalidRequestError(f"a prompt is a string or token ids, not {prompt!r:.80}") from error
            self.model.check_tokens(tokens)
        if not tokens:
            raise InvalidRequestError("the prompt is empty")
        if len(tokens) > self.context.n_ctx:
            raise ContextFullError(f"the prompt has {len(tokens)} tokens, n_ctx is {self.context.n_ctx}")
        return tokens


def _is_prompt(prompts: object) -> bool:
    """A string, or a sequence whose first element is no prompt itself."""
    if isinstance(prompts, str):
        return True
    if isinstance(prompts, bytes) or not isinstance(prompts, (Sequence, np.ndarray)):
        raise InvalidRequestError(f"prompts are strings or sequences of token ids, not {type(prompts).__name__}")
    return len(prompts) == 0 or not isinstance(prompts[0], (Sequence, np.ndarray))


_last: tuple[dict[str, Any], LLM] | None = None
_last_lock = threading.RLock()


def _keywords(of: Callable[..., Any]) -> set[str]:
    return set(signature(of).parameters) - {"self"}


@overload
def generate(prompts: Prompt, **keywords: Any) -> Completion: ...
@overload
def generate(prompts: Sequence[Prompt], **keywords: Any) -> list[Completion]: ...


def generate(prompts: Prompt | Sequence[Prompt], **keywords: Any) -> Completion | list[Completion]:
    """`LLM(…).generate(prompts, SamplingParams(…))` in one call: takes the keywords of both. The model stays loaded for
    the next call with the same LLM keywords. A call with others closes it first: there is never more than one. Calls
    from several threads take turns.

    Raises TypeError for a keyword of neither, and what LLM, SamplingParams and LLM.generate raise.
    """
    global _last
    sampling = {name: keywords.pop(name) for name in [f.name for f in fields(SamplingParams)] if name in keywords}
    params = SamplingParams(**sampling)
    if unknown := keywords.keys() - _keywords(LLM.__init__):
        raise TypeError(f"generate() got unexpected keywords: {', '.join(sorted(unknown))}")
    with _last_lock:
        if _last is None or _last[0] != keywords:
            if _last is not None:
                _last[1].close()
            _last = None
            _last = (dict(keywords), LLM(**keywords))
        return _last[1].generate(prompts, params)  # within the lock: another thread may ask for another model
