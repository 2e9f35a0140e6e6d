"""One request: its prompt, its sequence, its output so far, and the thread that waits for it."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pymtp.chat import ContentDelta, OutputEvent, OutputFormat, ParsedOutput, ReasoningDelta, ToolCall
from pymtp.chat.prompt import CacheKey
from pymtp.context.inspect import Counters
from pymtp.drafting.depth import DepthPolicy
from pymtp.drafting.text_drafts import TextDrafts
from pymtp.engine.image_encoder import NO_IMAGES, ImageJob, PromptImages
from pymtp.engine.rounds import DecodeState
from pymtp.engine.text import RequestText, ThinkingPlan
from pymtp.errors import InvalidRequestError, PymtpError, copied
from pymtp.model.model import Model
from pymtp.prefix_cache.cache import PrefillState
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.prefix_cache.tree import Space
from pymtp.sampling import MAX_MAGNITUDE, Sampler, SamplingParams, TokenLogprobs
from pymtp.stats import DraftStats, Stats, collect

FinishReason = Literal["stop", "length", "cancelled"]
POLL_SECONDS = 0.05
# A reader is woken at most this often, unless many pieces wait: to wake it for each round of a small model takes longer
# than the reader notices, and would slow the rounds down. docs/developers/tuning.md has the measurements.
HANDOVER_SECONDS = 0.004
# A grammar that allows any text but never its end: the last character would have to be one that does not exist.
ENDLESS_TEXT = r"root ::= [^\x00]* [^\x00-\U0010ffff]"


@dataclass(frozen=True)
class Completion:
    """The completion of a prompt.

    text: the whole text. Of a chat, `reasoning`, `content` and `tool_calls` are its parts.
    finish_reason: "stop" (an end token or a stop string), "length" (max_tokens, or the context is full), or
        "cancelled".
    token_ids: the generated tokens, with the end token; `text` has neither the end token nor the stop string.
    seed: the sampling seed that was used.
    logprobs: the log-probabilities of each token of `token_ids`; None if SamplingParams(logprobs=…) was not given.
    prompt_logprobs: the log-probabilities of each token of the prompt, after the tokens before it; None for the first
        token. None if SamplingParams(prompt_logprobs=…) was not given.
    others: the other completions of the prompt, if SamplingParams(n=…) asked for several.
    parsed: the parts of a chat's text, with a call that was cut off; None for other prompts.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    stats: Stats
    seed: int
    logprobs: list[TokenLogprobs] | None = None
    others: tuple[Completion, ...] = ()
    parsed: ParsedOutput | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def reasoning(self) -> str | None:
        """Return the thinking of a chat's answer; None without thinking."""
        return None if self.parsed is None else self.parsed.reasoning

    @property
    def content(self) -> str:
        """Return the text without thinking and tool calls, "" if nothing is left. Not of a chat: the whole text."""
        return self.text if self.parsed is None else self.parsed.content or ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the complete tool calls of a chat's answer, each with a name and its arguments as JSON text."""
        return () if self.parsed is None else self.parsed.tool_calls


@dataclass(frozen=True)
class Piece:
    """The tokens of one round of a streamed completion.

    text: the new text; empty while a character is incomplete, or the text may be the beginning of a stop string.
    drafted: the number of drafts that the round verified; 0 for the first token, which is sampled after the prefill.
    accepted: the number of accepted drafts among the tokens. They come first; the target sampled the other tokens.
    drafted_by_text, accepted_by_text: the numbers of these that came from text. They come after those of the head, of
        which the i-th is from draft step i.
    events: of a chat, the new reasoning, content and parts of tool calls. The last piece may have events alone.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    drafted: int = 0
    accepted: int = 0
    drafted_by_text: int = 0
    accepted_by_text: int = 0
    events: tuple[OutputEvent, ...] = ()

    @property
    def reasoning(self) -> str:
        """Return the new text of a chat's thinking."""
        return "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))

    @property
    def content(self) -> str:
        """Return the new text of a chat's answer, without thinking and tool calls."""
        return "".join(event.text for event in self.events if isinstance(event, ContentDelta))


class Caller(NamedTuple):
    """Whoever sends requests. Sequences are given to clients in turn, and to the calls of a client in turn.

    client: the name of the client, such as a digest of its API key or its address; "" in Python.
    owner: the owner of the spaces of the prefix cache: a digest of the API key; "" without a key.
    call: one object for all prompts of one call, or of one HTTP request.
    n_bytes: the size of the HTTP request's body.
    has_images: whether the body may hold images, which have to be decoded.
    """

    client: str = ""
    owner: str = ""
    call: object = None
    n_bytes: int = 0
    has_images: bool = False


# The server sets it for each HTTP request, so that no code between its routes and the engine has to pass it on.
current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


def cache_key(params: SamplingParams) -> CacheKey | None:
    """Return what separates the cached prompts of the current caller; None to look nothing up and to keep nothing."""
    caller = current_caller.get()
    return (caller.owner if caller else "", params.cache_salt) if params.cache_prompt else None


class Waiter:
    """A thread or coroutine that waits until its requests have ended, or until one of them has a new piece."""

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        """Create a waiter without requests.

        callback: called by `notify`, on the engine's thread; None if a thread calls `wait`.
        """
        # id() of each request: with references, a cycle would keep the requests in memory until garbage collection
        self._unfinished: set[int] = set()
        self._callback = callback
        # A notification releases it. A SimpleQueue would wait for ever if a signal's handler outlasts the timeout.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    @property
    def n_unfinished(self) -> int:
        """Return how many of the waiter's requests have not ended."""
        return len(self._unfinished)

    def add(self, request: Request) -> None:
        """Add a request to those that this waiter is notified of. Does not block."""
        self._unfinished.add(id(request))

    def done(self, request: Request) -> None:
        """Record that a request has ended. May be called twice for one request."""
        self._unfinished.discard(id(request))

    def notify(self) -> None:
        """Wake the waiting thread or coroutine: a request has a new piece, or has ended."""
        if self._callback is not None:
            self._callback()
            return
        with suppress(RuntimeError):  # it was released, and the waiting thread has not taken it yet
            self._quiet.release()

    def wait(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()`, which is asked after each notification and every POLL_SECONDS.

        Raises KeyboardInterrupt and whatever else a handler raises.
        """
        while not ready():
            # with a timeout: a signal that arrives directly before the wait begins does not end the wait, and one
            # notification wakes only one of several threads that read a stream
            self._quiet.acquire(timeout=POLL_SECONDS)


class Request:
    """One request for a completion.

    Only the thread that runs the engine changes a request; a stream's reader takes pieces from `unread`.

    prompt, tokens: token ids of the prompt, and of the output so far.
    seq: the sequence of the context that the request has; None while it waits for one.
    prefill_state: the prefill of the prompt; None while the request has no sequence.
    decode_state: the state of its decoding; None before the first output token.
    """

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        params: SamplingParams,
        waiter: Waiter,
        *,
        priority: int = 0,
        max_unread: int | None = None,
        seed_offset: int = 0,
        group: object = None,
        caller: Caller = Caller(),  # noqa: B008 — a constant
        branch_points: tuple[int, ...] = (),
        saver: PrefixSaver | None = None,
        thinking: ThinkingPlan | None = None,
        output_format: OutputFormat | None = None,
        cancel_count: int | None = None,
        images: PromptImages = NO_IMAGES,
    ) -> None:
        """Check the parameters, and create a request that `Engine.submit` takes.

        waiter: is notified of new pieces, and of the end of the request.
        priority: requests with a lower number are served first.
        max_unread: pieces that may wait in `unread` before the request pauses. None for a request that is not streamed:
            `unread` stays empty.
        seed_offset: number to add to the seed, for several completions of one prompt.
        group: one object, the same for all completions of one prompt (SamplingParams.n); None for a single completion.
        caller: whoever sent the request.
        branch_points: numbers of prompt tokens after which later prompts are likely to differ from this one.
        saver: saves the prompt's prefix to a file; the request ends after that, without output.
        thinking: the plan for the thinking block of the output; None if nothing is known of the block.
        output_format: the format of a chat's output, by which it is parsed; None for other prompts.
        cancel_count: the value of Context.cancels when the caller began to make the request; None for its value when
            the request is submitted. Every cancel() after that ends the request.
        images: the images of the prompt.

        Raises InvalidRequestError for a logit_bias outside the vocabulary, and for a grammar that is refused.
        """
        self.prompt, self.params, self.waiter = prompt, params, waiter
        self.priority, self.max_unread, self.group, self.branch_points = priority, max_unread, group, branch_points
        self.saver, self.caller, self.output_format, self.images = saver, caller, output_format, images
        self.image_jobs: dict[int, ImageJob] = {}  # by their tokens, the images that the prefill has come to
        # by their tokens, the number of tokens of the prompt up to the end of each image
        self.image_ends = {token: i for i, token in enumerate(prompt, 1) if token < 0} if images.by_token else {}
        self.space = Space(caller.owner, params.cache_salt, None if params.cache_prompt else group or object())
        model.check_tokens(list(params.logit_bias))
        self.thinking = ThinkingPlan() if thinking is None else thinking
        self.sampler = Sampler(params, seed_offset)
        self.sampler.find_breakers(model)
        if self.thinking.grammar_waits:  # the output must not end before the grammar begins
            self.sampler = self.sampler.with_grammar(ENDLESS_TEXT)
        if params.gbnf is not None and seed_offset == 0:
            # a grammar with a mistake is refused now, not when the request starts
            (Sampler(params) if self.thinking.grammar_waits else self.sampler).keep_grammar(model)
        self._model = model
        self.text = RequestText(model, params, self.thinking)
        self.draft_stats = DraftStats()
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None  # its owner sets them before it reads the output
        # log-probabilities of the forced tokens that close the thinking, until they are emitted
        self.forced_logprobs: list[TokenLogprobs] = []
        self.unread: deque[Piece] = deque()
        self.finish_reason: FinishReason | None = None
        self.error: PymtpError | None = None
        # Valid while the request has a sequence
        self.seq: int | None = None
        self.prefill_state: PrefillState | None = None
        self.decode_state: DecodeState | None = None
        self.n_recomputed = 0  # output tokens that the sequence holds again after a restart
        self.first_token_sampled = False
        self.cancelling = False  # whether the next step ends it as "cancelled"
        self.preempted = False  # whether another request has already taken its sequence once
        # The order and the times of the request
        self.number = 0  # counts the requests in the order of their arrival
        self.turn = 0  # the same count until the request gets its first sequence; then counts these in their order
        self.cancel_count = cancel_count  # a later cancel() ends the request
        self.arrival_time = self.start_time = self.first_token_time = self.last_piece_time = 0.0
        self.cached_tokens = 0  # prompt tokens that were not prefilled
        self.counters_before: Counters | None = None
        self.counters_after: Counters | None = None
        self._handed_over = -math.inf  # time when the reader was woken last
        self._texts: list[str] = []  # the text of each piece
        waiter.add(self)

    @property
    def ended(self) -> bool:
        """Return whether the last piece was emitted."""
        return self.finish_reason is not None

    @property
    def rank(self) -> tuple[int, int]:
        """Return the key that orders requests: by priority, then by the time of the first sequence or the arrival."""
        return self.priority, self.turn

    @property
    def had_sequence(self) -> bool:
        """Return whether the request has or had a sequence."""
        return self.turn != self.number

    @property
    def n_prefilled(self) -> int:
        """Return the number of prompt tokens that the request's sequence holds."""
        return 0 if self.prefill_state is None else self.prefill_state.n_computed

    @property
    def n_past(self) -> int:
        """Return the number of tokens that the request's sequence holds."""
        return self.n_prefilled + self.n_recomputed if self.decode_state is None else self.decode_state.n_past

    def require_decode_state(self) -> DecodeState:
        """Return the decode state of a request that is known to have one."""
        assert self.decode_state is not None
        return self.decode_state

    @property
    def must_close_thinking(self) -> bool:
        """Return whether forced tokens must close the thinking block before the next round."""
        if self.decode_state is None or self.text.ended:
            return False
        return self.text.thinking.closing and self.decode_state.tokens_left > 0

    @property
    def prefill_sampler(self) -> Sampler:
        """Return the sampler for the prefill and, after a restart, for the output tokens that are computed again."""
        # No grammar after a closed thinking block: it might refuse the forced tokens that closed the block
        return self.sampler if self.text.thinking.closed_at is None else self.sampler.with_grammar(None)

    def sampler_after_thinking(self, n: int) -> Sampler:
        """Return the sampler for the output after a thinking block that was closed.

        n: number of tokens that the sequence already has after the block.
        """
        return self.sampler.with_grammar(self.thinking.grammar, self.thinking.grammar_prefix + n)

    def sampler_of(self, token: int) -> Sampler:
        """Return a sampler that samples one token for certain, to get its log-probability."""
        bias = {token: MAX_MAGNITUDE}
        plain = replace(self.params, grammar=None, json_schema=None, logits_processor=None, samplers=())
        return Sampler(replace(plain, temperature=0.0, logit_bias=bias))

    @property
    def waits_for_images(self) -> bool:
        """Return whether images that the prefill has come to are not encoded yet."""
        return not all(job.done for job in self.image_jobs.values())

    @property
    def paused(self) -> bool:
        """Return whether the request waits for its reader, because `unread` is full."""
        return self.max_unread is not None and len(self.unread) >= self.max_unread

    def error_copy(self) -> PymtpError | None:
        """Return a copy of the request's error, to raise: a raised error keeps the frames of its traceback alive."""
        return None if self.error is None else copied(self.error)

    def max_output_tokens(self, n_ctx: int) -> int:
        """Return the largest number of output tokens, of which the last one needs no room in the context."""
        room = n_ctx + 1 - len(self.prompt)
        return room if self.params.max_tokens is None else min(room, self.params.max_tokens)

    def start_decoding(
        self, token: int, n_output: int, n_ctx: int, depth: DepthPolicy, text: TextDrafts | None
    ) -> DecodeState:
        """Create the decode state: the next round begins with `token`, the n_output-th output token."""
        assert self.seq is not None
        self.decode_state = DecodeState(
            self.seq,
            token,
            len(self.prompt) + n_output - 1,
            tokens_left=self.max_output_tokens(n_ctx) - n_output,
            is_last=self.text.add_token,
            draft_stats=self.draft_stats,
            depth=depth,
            max_drafts=self.params.draft_tokens,
            text=text,
        )
        return self.decode_state

    def emit(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs],
        now: float,
        reason: FinishReason | None = None,
        drafts: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Emit the tokens of a round as a piece.

        reason: given with the last piece, which also has the text that was held back.
        drafts: the number of verified drafts, and of accepted drafts, and the numbers of these that came from text.
        """
        if not self.tokens:
            self.first_token_time = now
        self.last_piece_time = now
        if reason is not None:
            self.text.flush()
        text = self._add_output(tokens, logprobs)
        if self.max_unread is not None:
            self.unread.append(Piece(text, tokens, None if self.logprobs is None else logprobs, *drafts))
            must_wake = now - self._handed_over >= HANDOVER_SECONDS or 2 * len(self.unread) >= self.max_unread
            if must_wake and reason is None:
                self._handed_over = now
                self.waiter.notify()
        if reason is not None:
            self.finish(reason)
            self.waiter.notify()

    def hand_over(self) -> None:
        """Wake the reader of a stream if it has unread pieces: the next round may take long to come."""
        if self.unread:
            self.waiter.notify()

    def restart(self) -> None:
        """Reset the request for a new prefill, after which its output is computed again. The output stays."""
        self.decode_state = self.prefill_state = None
        self.n_recomputed = 0
        self.first_token_sampled = False
        self.forced_logprobs = []
        # The old RequestText may have tokens of a round that was cancelled
        self.text = RequestText(self._model, self.params, self.thinking)
        with suppress(PymtpError):  # the model may be closed: its next use raises the error again
            for token in self.tokens:
                self.text.add_token(token)
        self.text.take()

    def finish(self, reason: FinishReason) -> None:
        """Set the finish reason. Must come after all other changes: from now on any thread may read the fields."""
        self.sampler.free_grammar()
        self.images = NO_IMAGES
        self.finish_reason = reason
        self.waiter.done(self)

    def abort(self, now: float, error: PymtpError | None = None, *, emit_piece: bool = False) -> None:
        """End the request as "cancelled", with an error if one is given. Does nothing if it has ended.

        emit_piece: whether the reader of a stream gets a last piece, without tokens.
        """
        if self.finish_reason is not None:
            return
        if not self.start_time:
            self.start_time = now
        if not self.tokens:
            self.first_token_time = self.last_piece_time = now
        self.error = error
        self.text.take()  # the tokens of a cancelled round are not emitted, nor is their text
        self.text.flush()
        text = self._add_output([], [])
        if emit_piece and self.max_unread is not None:
            self.unread.append(Piece(text, [], None if self.logprobs is None else []))
        self.finish("cancelled")
        self.waiter.notify()

    def _add_output(self, tokens: list[int], logprobs: list[TokenLogprobs]) -> str:
        """Add tokens and the text that they completed to the output. Return the text."""
        text = self.text.take()
        self._texts.append(text)
        self.tokens += tokens
        if self.logprobs is not None:
            self.logprobs += logprobs
        return text

    @property
    def completion(self) -> Completion:
        """Return the completion of a request that has ended. Raises InvalidRequestError before the end."""
        if self.finish_reason is None:
            raise InvalidRequestError("the stream has not ended: iterate over it, or close it")
        text = "".join(self._texts)
        return Completion(
            text=text,
            token_ids=list(self.tokens),
            finish_reason=self.finish_reason,
            prompt_token_ids=list(self.prompt),
            stats=self.stats,
            seed=self.sampler.seed,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            parsed=None if self.output_format is None else self.output_format.parse(text),
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
        )

    @property
    def stats(self) -> Stats:
        """Return the statistics so far. Any thread may read them; those of a running request are a snapshot."""
        return collect(
            len(self.prompt),
            len(self.tokens),
            self.first_token_time - self.start_time,
            self.last_piece_time - self.first_token_time,
            self.draft_stats,
            self.counters_before,
            self.counters_after,
            cached_tokens=self.cached_tokens,
            queue_seconds=self.start_time - self.arrival_time,
            time_to_first_token=self.first_token_time - self.arrival_time if self.tokens else 0.0,
            thinking_tokens=self.text.thinking.tokens,
        )


def collect_completions(requests: Sequence[Request]) -> list[Completion]:
    """Return the completion of each prompt, once all requests have ended.

    Raises a copy of the first error, with the results of all prompts in its `completions`.
    """
    results: list[Completion | PymtpError] = []
    i = 0
    while i < len(requests):
        group = requests[i : i + requests[i].params.n]
        i += len(group)
        errors = [request.error_copy() for request in group if request.error is not None]
        first, *others = (request.completion for request in group)
        results.append(errors[0] or first if errors else replace(first, others=tuple(others)) if others else first)
    completions = [result for result in results if isinstance(result, Completion)]
    if len(completions) < len(results):
        raise _with_completions(results)
    return completions


def _with_completions(results: list[Completion | PymtpError]) -> PymtpError:
    """Return a copy of the first error, with the results of all prompts.

    The results contain the first error itself: without a copy, it would be a reference cycle, which is freed late.
    """
    first = next(result for result in results if isinstance(result, PymtpError))
    raised = copied(first)
    raised.completions = tuple(results)
    return raised
