"""The thinking in an output: where it begins and ends, how many tokens it has, and how its budget closes it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pymtp.chat.output_grammar import grammar_after_thinking
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.qwen_tags import THINK_END, THINK_START, TOOL_CALL_START
from pymtp.chat.template import Chat
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.sampling import MAX_MAGNITUDE, Sampler, SamplingParams
from pymtp.validation import shown

NEWLINES = "\n\n"  # templates write these newlines after </think>
N_END_TOKENS = 16  # last tokens of a prompt that are searched for an open <think>

_START = THINK_START.encode()
_SPACE = b" \t\r\n"
_END = re.compile(THINK_END.encode())
_MAY_END = re.compile(rb"<[/a-z]{0,6}\Z")
# Where there are tools, a call within the thinking ends the thinking, because OutputParser parses it as a call.
_END_OR_CALL = re.compile(rb"</think>|<tool_call>[ \t\r\n]*(?:<function=|\{)")
_MAY_END_OR_CALL = re.compile(rb"(?:<tool_call>[ \t\r\n]*)?<[/a-z_=]{0,9}\Z|<tool_call>[ \t\r\n]*\Z")


@dataclass(frozen=True)
class ThinkingPlan:
    """The plan for the thinking of an output, made before the first token.

    begun: whether the prompt ends within the thinking.
    no_stop_in_thinking: whether stop strings match only after the thinking.
    call_ends: whether a tool call ends the thinking, too.
    budget: the largest number of tokens that the thinking may have; None for any number.
    closing: the tokens that close the thinking at its budget: params.thinking_end, `</think>` and newlines.
    grammar_waits: whether the grammar begins after the thinking, even if the model ends the thinking itself.
    newlines: tokens that are forced before the grammar begins if the model ended the thinking itself.
    grammar: the grammar for the output after `closing`; None for no grammar.
    grammar_prefix: number of tokens at the end of `closing` that the grammar already covers.
    """

    begun: bool = False
    no_stop_in_thinking: bool = False
    call_ends: bool = False
    budget: int | None = None
    closing: tuple[int, ...] = ()
    newlines: tuple[int, ...] = ()
    grammar_waits: bool = False
    grammar: str | None = None
    grammar_prefix: int = 0


def plan_thinking(model: Model, prompt: ChatPrompt, params: SamplingParams, n_ctx: int, *, calls: bool) -> ThinkingPlan:
    """Plan the thinking after a prompt. calls: whether the prompt offers tools.

    Raises InvalidRequestError for a budget beyond the context.
    """
    end = prompt.end or b"".join(map(model.token_bytes, prompt.tokens[-N_END_TOKENS:])).decode(errors="ignore")
    begun, no_stop_in_thinking = end.rstrip().endswith(THINK_START), prompt.end != ""
    budget, gbnf = params.thinking_budget, params.gbnf
    calls = calls or (gbnf is not None and TOOL_CALL_START in gbnf)
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


def has_tools(prompt: object) -> bool:
    """Return whether a prompt is a chat that offers tools."""
    return isinstance(prompt, Chat) and bool(prompt.tools)


def apply_thinking_budget(chat: Chat, params: SamplingParams) -> Chat:
    """Return the chat; for a thinking budget of 0, a copy that tells the template to switch thinking off."""
    variables = {} if chat.chat_template_kwargs is None else chat.chat_template_kwargs
    if params.thinking_budget != 0 or not isinstance(variables, Mapping):  # ChatTemplate.render refuses other types
        return chat
    return replace(chat, chat_template_kwargs={**variables, "enable_thinking": False})


class ThinkingTracker:
    """A tracker that follows an output token by token, and says when its thinking must be closed.

    tokens: number of thinking tokens: those that begin before `</think>`, except the tags and forced tokens.
    within: whether the output is within its thinking.
    closing: whether the next tokens are those in `forced`, instead of sampled tokens. A grammar may begin after the
        forced tokens.
    forced: the tokens to force next.
    closed_at: number of tokens in the output up to the last forced one; None before that token, and if none were
        forced.
    """

    def __init__(self, plan: ThinkingPlan) -> None:
        self._plan = plan
        self._end, self._may_end = (_END_OR_CALL, _MAY_END_OR_CALL) if plan.call_ends else (_END, _MAY_END)
        self.tokens = 0
        self.within = plan.begun
        self.closing = False
        self.forced: deque[int] = deque()
        self.closed_at: int | None = None
        self._n_tokens = 0
        self._over = False
        self._start_text = b""  # the beginning of a text that may yet begin with <think>
        self._undecided = b""  # the last bytes, where they may become a tag
        self._token_starts: list[int] = []  # offsets in `_undecided` at which tokens of the thinking begin
        self._check_budget()

    def push(self, data: bytes) -> int:
        """Take the bytes of the next token; return how many come before the place where thinking begins or ends.

        If the thinking neither begins nor ends within the token, the number of all its bytes is returned.
        """
        self._n_tokens += 1
        if self.closing:
            if self.forced:
                self.forced.popleft()
            else:
                self.closing, self.closed_at = False, self._n_tokens - 1
        if self._over:
            return len(data)
        if self.within:
            return self._push_thinking(data, counts=not self.closing)
        self._start_text += data
        begins = self._start_text.lstrip(_SPACE)
        if not begins.startswith(_START):
            self._over = not _START.startswith(begins)
            return len(data)
        self.within = True
        rest = begins[len(_START) :]
        self._push_thinking(rest, counts=False)
        self._check_budget()
        return len(data) - len(rest)

    def _push_thinking(self, data: bytes, *, counts: bool) -> int:
        if counts:
            self.tokens += 1
            self._token_starts.append(len(self._undecided))
        self._undecided += data
        found = self._end.search(self._undecided)
        if found is None:
            begun = self._may_end.search(self._undecided)
            cut = len(self._undecided) if begun is None else begun.start()
            self._undecided = self._undecided[cut:]
            self._token_starts = [start - cut for start in self._token_starts if start >= cut]
            if counts:
                self._check_budget()
            return len(data)
        self._over, self.within = True, False
        self.tokens -= sum(start >= found.start() for start in self._token_starts)
        if self._plan.grammar_waits and not self.closing:
            self._close(self._plan.newlines)
        return max(0, len(data) - (len(self._undecided) - found.end()))

    def _check_budget(self) -> None:
        budget = self._plan.budget
        if self.within and budget is not None and self.tokens >= budget and not self.closing:
            self._close(self._plan.closing)

    def _close(self, tokens: Sequence[int]) -> None:
        self.closing, self.forced = True, deque(tokens)


# A grammar that allows any text but never its end: the last character would have to be one that does not exist.
ENDLESS_TEXT = r"root ::= [^\x00]* [^\x00-\U0010ffff]"


class RequestSamplers:
    """The samplers of one request, which all use the request's seed.

    first: the sampler for the first token and the tokens after it. If the grammar begins only after the thinking, this
        sampler does not let the output end before that.
    """

    def __init__(self, params: SamplingParams, plan: ThinkingPlan, seed_offset: int) -> None:
        self._plan = plan
        self.first = Sampler(params, seed_offset)
        if plan.grammar_waits:
            self.first = self.first.with_grammar(ENDLESS_TEXT)

    def after_thinking(self, n: int) -> Sampler:
        """Return the sampler for the output after a thinking that was closed.

        n: number of tokens that the sequence already has after the thinking.
        """
        return self.first.with_grammar(self._plan.grammar, self._plan.grammar_prefix + n)

    def without_grammar(self) -> Sampler:
        """Return a sampler without a grammar, for an output that is prefilled again after a preemption."""
        return self.first.with_grammar(None)

    def always(self, token: int) -> Sampler:
        """Return a sampler that samples one token for certain, to get its log-probability."""
        params = replace(
            self.first.params, grammar=None, json_schema=None, temperature=0.0, logit_bias={token: MAX_MAGNITUDE}
        )
        return Sampler(params)
