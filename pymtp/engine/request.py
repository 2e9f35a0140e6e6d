"""All state of one request: from a prompt to the last piece of its completion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from pymtp.chat.thinking import Samplers, Thinking
from pymtp.context.inspect import Counters
from pymtp.drafting.depth import Depth
from pymtp.engine.rounds import Writer
from pymtp.engine.text import RequestText
from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.model.model import Model
from pymtp.prefix_cache.records import Reader
from pymtp.prefix_cache.save import PrefixSaver
from pymtp.sampling import Sampler, SamplingParams, TokenLogprobs
from pymtp.stats import Stats, Tally, collect

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Completion:
    """What came of a prompt.

    finish_reason: "stop" (the model ended, or a stop string came), "length" (max_tokens, or the context is full),
        "cancelled".
    token_ids: what was generated, an end token included; `text` has neither that nor a stop string.
    seed: the sampling seed in use.
    logprobs: of each token of `token_ids`; None unless asked for.
    others: the further completions of the prompt, where SamplingParams(n=…) asks for several.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    stats: Stats
    seed: int
    logprobs: list[TokenLogprobs] | None = None
    others: tuple[Completion, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A round's part of a streamed completion. `text` may be empty while a character or a stop string is incomplete.

    drafted: drafts that the round verified, 0 for the token that comes with the prompt. accepted: how many of the first
        tokens were drafts, the i-th made at step i; the others were written by the target.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    drafted: int = 0
    accepted: int = 0


class Unread(deque[Piece]):
    """Pieces for a reader, on any thread."""

    last: Piece | None = None  # what it took last, or is about to take

    def popleft(self) -> Piece:
        self.last = self[0]  # before the next line: one that is gone was taken, see Request.begin_anew
        return super().popleft()


class Caller:
    """Who waits for some requests: a thread, for all of them to end, or for pieces of one."""

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        """notify: called where there is something new, on the thread that runs the engine; None: `wait` is used."""
        self._unended: set[int] = set()  # its requests, by id(): no cycle, they are freed at once
        self._notify = notify
        self._waiting = False
        self._news: SimpleQueue[None] = SimpleQueue()

    @property
    def waiting(self) -> bool:
        """Whether a thread is in `wait`."""
        return self._waiting

    @property
    def unended(self) -> int:
        """How many of its requests have not ended."""
        return len(self._unended)

    def asks(self, request: Request) -> None:
        """A new request."""
        self._unended.add(id(request))

    def ended(self, request: Request) -> None:
        """All of a request is there. May be told twice."""
        self._unended.discard(id(request))

    def tell(self) -> None:
        """There is something new."""
        if self._notify is not None:
            self._notify()
        elif self._waiting:
            self._news.put(None)

    def wait(self, unless: Callable[[], object], seconds: float) -> bool:
        """Waits until there is something new, at most so long; not at all where `unless` holds by now. Whether either
        came."""
        self._waiting = True
        try:
            if not unless():
                self._news.get(timeout=seconds)
            return True
        except Empty:
            return False
        finally:
            self._waiting = False


class Request:
    """All state of one request. The thread that runs the engine changes it, a reader takes from `unread`."""

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        params: SamplingParams,
        caller: Caller,
        *,
        priority: int = 0,
        ahead: int | None = None,
        seed_offset: int = 0,
        family: object = None,
        marks: tuple[int, ...] = (),
        saver: PrefixSaver | None = None,
        thinking: Thinking | None = None,
    ) -> None:
        """
        caller: who waits for it.
        priority: requests with a lower one come first.
        ahead: pieces that may wait for their reader, who takes them from `unread`; None for no reader: pieces are
            joined in the completion only.
        seed_offset: what is added to the seed, for several completions of a prompt.
        family: the same for all requests for completions of one prompt; None for no others.
        marks: places of the prompt that prompts to come are expected to part from it at.
        saver: for a prompt that is to be saved; nothing is written after it then.
        thinking: of the text; None where nothing is known of it.

        Raises InvalidRequestError for params that the model's vocabulary has no place for, and a grammar that is
        refused.
        """
        self.prompt, self.params, self.caller = prompt, params, caller
        self.priority, self.ahead, self.family, self.marks = priority, ahead, family, marks
        self.saver = saver
        model.check_tokens(list(params.logit_bias))
        self.thinking = Thinking() if thinking is None else thinking
        self.samplers = Samplers(params, self.thinking, seed_offset)
        self.sampler = self.samplers.first
        if params.gbnf is not None and seed_offset == 0:  # once for all completions of a prompt
            with Sampler(params).compiled(model):
                pass  # refused now, not when its turn comes
        self._model = model
        self.text = RequestText(model, params, self.thinking)
        self.tally = Tally()
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.forced_logprobs: list[TokenLogprobs] = []  # of tokens that close its thinking, until they are handed out
        self.unread = Unread()
        self.reason: FinishReason | None = None
        self.error: PymtpError | None = None
        # while it has a sequence
        self.seq: int | None = None
        self.reader: Reader | None = None  # of its prompt
        self.writer: Writer | None = None  # once its prompt is read
        self.n_caught = 0  # where it began anew: tokens that came out before, and that the sequence holds
        self.begun = False  # whether the first token after the prompt was sampled
        self.gave_way = False  # its sequence was given to another once
        self.taken = False  # the engine's thread knows of it
        # its arrival, and when what began
        self.number = 0
        self.cancels = 0  # that the context had seen by then
        self.submitted = self.started = self.prefilled = self.updated = 0.0
        self.cached = 0
        self.before: Counters | None = None
        self.after: Counters | None = None
        # all that came out, and why the last piece is the last: what else says so is put right by this, see begin_anew
        self._pieces: list[tuple[Piece, FinishReason | None]] = []
        self._n_unread = 0  # pieces that `unread` was given
        caller.asks(self)

    @property
    def ended(self) -> bool:
        """Whether the last piece is out."""
        return self.reason is not None

    @property
    def rank(self) -> tuple[int, int]:
        """Who comes first: by priority, then by arrival."""
        return self.priority, self.number

    @property
    def n_read(self) -> int:
        """Tokens of the prompt that its sequence holds."""
        return 0 if self.reader is None else self.reader.n

    @property
    def n_held(self) -> int:
        """Tokens that its sequence holds."""
        return self.n_read + self.n_caught if self.writer is None else self.writer.n_past

    @property
    def at(self) -> Writer:
        """Its writer, where it has one."""
        assert self.writer is not None
        return self.writer

    @property
    def closes(self) -> bool:
        """Whether its thinking is to be closed before it writes on."""
        if self.writer is None or self.text.ended:
            return False
        return self.text.thinking.closing and self.writer.left > 0

    @property
    def reading_sampler(self) -> Sampler:
        """Of a sequence that is to read its prompt, and what came out before."""
        # what closed the thinking may be outside of the grammar
        return self.sampler if self.text.thinking.closed_at is None else self.samplers.free()

    @property
    def paused(self) -> bool:
        """Whether its reader has not taken what is there."""
        return self.ahead is not None and len(self.unread) >= self.ahead

    def failure(self) -> PymtpError | None:
        """A new error like the one that it failed by: one that is raised holds the frames of who raised it."""
        return None if self.error is None else type(self.error)(*self.error.args)

    def most(self, n_ctx: int) -> int:
        """The most tokens that it may write: the last needs no place in the context."""
        room = n_ctx + 1 - len(self.prompt)
        return room if self.params.max_tokens is None else min(room, self.params.max_tokens)

    def write(self, token: int, n_out: int, n_ctx: int, depth: Depth) -> Writer:
        """Rounds go on from `token`, the n_out-th that came out."""
        assert self.seq is not None
        self.writer = Writer(
            self.seq,
            token,
            len(self.prompt) + n_out - 1,
            left=self.most(n_ctx) - n_out,
            ends=self.text.ends,
            tally=self.tally,
            depth=depth,
            cap=self.params.draft_tokens,
        )
        return self.writer

    def hand_out(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs],
        now: float,
        reason: FinishReason | None = None,
        drafts: tuple[int, int] = (0, 0),
    ) -> None:
        """The tokens of a round, as a piece: with a reason, the last one, with what was held back.
        drafts: that were verified, and that were accepted."""
        if not self.tokens:
            self.prefilled = now
        self.updated = now
        if reason is not None:
            self.text.flush()
        self._add(tokens, logprobs, reason, drafts, reads=self.ahead is not None)
        if self.ahead is not None or reason is not None:
            self.caller.tell()

    def begin_anew(self) -> None:
        """Its sequence holds nothing any more. Where the thread was broken off, what came out is put right."""
        self.tokens = [token for piece, _ in self._pieces for token in piece.token_ids]
        if self.logprobs is not None:
            self.logprobs = [each for piece, _ in self._pieces for each in piece.logprobs or ()]
        if self._pieces:
            piece, reason = self._pieces[-1]
            if self.ahead is not None and self._n_unread < len(self._pieces):
                there = any(one is piece for one in list(self.unread))
                if not there and self.unread.last is not piece:
                    self.unread.append(piece)
                self._n_unread = len(self._pieces)
            if reason is not None:
                self.finish(reason)
        self.writer = self.reader = None
        self.n_caught = 0
        self.begun = False
        self.forced_logprobs = []
        # tokens of a round that was broken off may be in what there was
        self.text = RequestText(self._model, self.params, self.thinking)
        with suppress(PymtpError):  # of a model that was closed: its next use says so
            for token in self.tokens:
                self.text.ends(token)
        self.text.take()

    def finish(self, reason: FinishReason) -> None:
        """All is there: whoever waits may look from now on, from any thread."""
        self.reason = reason
        self.caller.ended(self)

    def give_up(self, now: float, error: PymtpError | None = None, *, tells_reader: bool = False) -> None:
        """Ends it as "cancelled", unless it has ended, with the error that it failed by.
        tells_reader: by a piece without tokens."""
        if self.reason is not None:
            return
        if not self.started:
            self.started = now
        if not self.tokens:
            self.prefilled = self.updated = now
        self.error = error
        self.text.take()  # of a round that was broken off: its tokens did not come out
        self.text.flush()
        self._add([], [], "cancelled", (0, 0), reads=tells_reader and self.ahead is not None)
        self.caller.tell()

    def _add(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprobs],
        reason: FinishReason | None,
        drafts: tuple[int, int],
        *,
        reads: bool,
    ) -> None:
        piece = Piece(self.text.take(), tokens, None if self.logprobs is None else logprobs, *drafts)
        self._pieces.append((piece, reason))
        self.tokens += tokens
        if self.logprobs is not None:
            self.logprobs += logprobs
        if reads:
            self.unread.append(piece)
        self._n_unread += 1
        if reason is not None:
            self.finish(reason)

    @property
    def completion(self) -> Completion:
        """The whole, once it has ended. Raises InvalidRequestError before."""
        if self.reason is None:
            raise InvalidRequestError("the stream has not ended: iterate over it, or close it")
        return Completion(
            text="".join(piece.text for piece, _ in self._pieces),
            token_ids=list(self.tokens),
            finish_reason=self.reason,
            prompt_token_ids=list(self.prompt),
            stats=self._stats(),
            seed=self.sampler.seed,
            logprobs=None if self.logprobs is None else list(self.logprobs),
        )

    def _stats(self) -> Stats:
        return collect(
            len(self.prompt),
            len(self.tokens),
            self.prefilled - self.started,
            self.updated - self.prefilled,
            self.tally,
            self.before,
            self.after,
            cached_tokens=self.cached,
            queue_seconds=self.started - self.submitted,
            time_to_first_token=self.prefilled - self.submitted if self.tokens else 0.0,
            thinking_tokens=self.text.thinking.tokens,
        )
