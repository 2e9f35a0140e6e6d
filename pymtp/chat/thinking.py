"""Where the thinking of a text begins and ends, how many tokens it has, and what closes it when its budget is out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pymtp.chat.output_grammar import behind_thinking
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.template import Chat
from pymtp.chat.written import CALL, THINK, THOUGHT
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.sampling import MOST, Sampler, SamplingParams
from pymtp.validation import shown

BEHIND = "\n\n"  # what templates write behind </think>
LAST = 16  # tokens of a prompt that are looked at for an open <think>

_THINK = THINK.encode()
_SPACE = b" \t\r\n"
_END = re.compile(THOUGHT.encode())
_MAY_END = re.compile(rb"<[/a-z]{0,6}\Z")
# A call within thinking is a call, as AnswerReader reads it.
_END_OR_CALL = re.compile(rb"</think>|<tool_call>[ \t\r\n]*(?:<function=|\{)")
_MAY_END_OR_CALL = re.compile(rb"(?:<tool_call>[ \t\r\n]*)?<[/a-z_=]{0,9}\Z|<tool_call>[ \t\r\n]*\Z")


@dataclass(frozen=True)
class Thinking:
    """What is known of a text's thinking before it is written.

    begun: the prompt ends within it. apart: stop strings wait for its end. calls: a call of a tool ends it, too.
    budget: the most tokens that it may have; None for any number.
    closing: tokens that are written when the budget is out: the message, `</think>` and newlines.
    waits: the grammar begins behind it, however it ends; `newlines` are written in between where the model closed it.
    grammar: what holds the text once `closing` is written, None for nothing. grammar_prefix: so many tokens of
        `closing` are the beginning of the grammar's text.
    """

    begun: bool = False
    apart: bool = False
    calls: bool = False
    budget: int | None = None
    closing: tuple[int, ...] = ()
    newlines: tuple[int, ...] = ()
    waits: bool = False
    grammar: str | None = None
    grammar_prefix: int = 0


def thinking_of(model: Model, prompt: ChatPrompt, params: SamplingParams, n_ctx: int, *, calls: bool) -> Thinking:
    """What is known of the thinking after a prompt. calls: whether the prompt offers tools.

    Raises InvalidRequestError for a budget beyond the context.
    """
    end = prompt.end or b"".join(map(model.token_bytes, prompt.tokens[-LAST:])).decode(errors="ignore")
    begun, apart, budget, gbnf = end.rstrip().endswith(THINK), prompt.end != "", params.thinking_budget, params.gbnf
    calls = calls or (gbnf is not None and CALL in gbnf)
    if budget is None:
        return Thinking(begun, apart, calls)
    if budget > n_ctx:
        raise InvalidRequestError(
            f"thinking_budget={shown(budget)} is beyond the context of n_ctx={n_ctx} tokens: give less, or None",
            "thinking_budget",
        )
    message = model.tokenize(params.thinking_end, add_special=False) if budget and params.thinking_end else []
    close = model.tokenize(THOUGHT + BEHIND, add_special=False)
    of_answers = None if params.grammar is None else behind_thinking(params.grammar)
    covers = params.grammar is not None and of_answers is None and THOUGHT in params.grammar
    waits = begun and gbnf is not None and not covers and of_answers is None and params.grammar_prefix == 0
    return Thinking(
        begun,
        apart,
        calls and not waits,
        budget,
        closing=(*message, *close),
        newlines=tuple(model.tokenize(BEHIND, add_special=False)),
        waits=waits,
        grammar=of_answers or gbnf,
        grammar_prefix=len(close) if covers else 0,
    )


def has_tools(prompt: object) -> bool:
    """Whether it is a chat whose answer may call tools."""
    return isinstance(prompt, Chat) and bool(prompt.tools)


def chat_of_budget(chat: Chat, params: SamplingParams) -> Chat:
    """The chat, whose template is told not to think where the budget is 0."""
    variables = {} if chat.chat_template_kwargs is None else chat.chat_template_kwargs
    if params.thinking_budget != 0 or not isinstance(variables, Mapping):  # what is none is refused by the template
        return chat
    return replace(chat, chat_template_kwargs={**variables, "enable_thinking": False})


class ThinkingText:
    """Follows a text token by token: whether it is within its thinking, and whether that is to be closed now.

    tokens: of the thinking, those that begin before `</think>`. Neither tags nor what closes the thinking count.
    closing: the next tokens are `forced`, whatever the model would sample, and a grammar may begin behind them.
    closed_at: how many tokens had come when that was done; None before, and where the model closed it by itself.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self._end, self._may_end = (_END_OR_CALL, _MAY_END_OR_CALL) if thinking.calls else (_END, _MAY_END)
        self.tokens = 0
        self.within = thinking.begun
        self.closing = False
        self.forced: deque[int] = deque()
        self.closed_at: int | None = None
        self._n = 0
        self._over = False
        self._head = b""  # of a text that may begin with <think>
        self._tail = b""  # what may become a tag
        self._starts: list[int] = []  # of the tokens within it
        self._check_budget()

    def push(self, data: bytes) -> int:
        """Takes a token's bytes. How many of them stand before the place where the thinking began or ended, all of
        them where neither is within the token."""
        self._n += 1
        if self.closing:
            if self.forced:
                self.forced.popleft()
            else:
                self.closing, self.closed_at = False, self._n - 1
        if self._over:
            return len(data)
        if self.within:
            return self._think(data, counts=not self.closing)
        self._head += data
        begins = self._head.lstrip(_SPACE)
        if not begins.startswith(_THINK):
            self._over = not _THINK.startswith(begins)
            return len(data)
        self.within = True
        rest = begins[len(_THINK) :]
        self._think(rest, counts=False)
        self._check_budget()
        return len(data) - len(rest)

    def _think(self, data: bytes, *, counts: bool) -> int:
        if counts:
            self.tokens += 1
            self._starts.append(len(self._tail))
        self._tail += data
        found = self._end.search(self._tail)
        if found is None:
            begun = self._may_end.search(self._tail)
            cut = len(self._tail) if begun is None else begun.start()
            self._tail = self._tail[cut:]
            self._starts = [start - cut for start in self._starts if start >= cut]
            if counts:
                self._check_budget()
            return len(data)
        self._over, self.within = True, False
        self.tokens -= sum(start >= found.start() for start in self._starts)
        if self._thinking.waits and not self.closing:
            self._close(self._thinking.newlines)
        return max(0, len(data) - (len(self._tail) - found.end()))

    def _check_budget(self) -> None:
        budget = self._thinking.budget
        if self.within and budget is not None and self.tokens >= budget and not self.closing:
            self._close(self._thinking.closing)

    def _close(self, tokens: Sequence[int]) -> None:
        self.closing, self.forced = True, deque(tokens)


# Any text. It never ends: no character comes last.
ENDLESS = r"root ::= [^\x00]* [^\x00-\U0010ffff]"


class Samplers:
    """Samplers of one request. All have its seed.

    first: of the first token on. Where the grammar waits for the end of the thinking, the text may not end before.
    """

    def __init__(self, params: SamplingParams, thinking: Thinking, seed_offset: int) -> None:
        self._thinking = thinking
        self.first = Sampler(params, seed_offset)
        if thinking.waits:
            self.first = self.first.held_to(ENDLESS)

    def behind(self, n: int) -> Sampler:
        """Of the tokens behind a thinking that was closed. n: those that the sequence has by then."""
        return self.first.held_to(self._thinking.grammar, self._thinking.grammar_prefix + n)

    def free(self) -> Sampler:
        """Without a grammar, for a text that is brought back."""
        return self.first.held_to(None)

    def certain(self, token: int) -> Sampler:
        """Of one token, whose log-probability is wanted."""
        params = replace(self.first.params, grammar=None, json_schema=None, temperature=0.0, logit_bias={token: MOST})
        return Sampler(params)
