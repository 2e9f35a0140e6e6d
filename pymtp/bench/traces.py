"""Traces: requests whose prompts begin alike, as chats, agents and questions about a document make them.

A trace says how long everything is and how each prompt goes on from texts before it. Words are random tokens, the same
each time, but for the model's own: these are what it wrote in the run, always as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from pymtp.model.model import Model
from pymtp.prefix_cache.tree import as_tokens, shared

CHAT, AGENTS, DOCUMENT, FOUR, AT_ONCE, PREFIXES, MESSAGES, ALONE, DISK = NAMES = (
    "chat",
    "agents",
    "document",
    "four",
    "at-once",
    "prefixes",
    "messages",
    "alone",
    "disk",
)
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
OPENED = 2  # tokens of a block of thinking that the template opens; as Qwen's vocabulary has them


@dataclass(frozen=True)
class Ask:
    """A request. Its prompt: the first `kept` tokens of the last prompt of its text, the answer to that one from the
    token `answer_from` on (None: nothing of it), and `new`.

    text: which of the trace's texts goes on. tokens: to be written. mark: where the next prompt of a chat parts from
    this one, whatever the answer, as LLM.chat finds out by the template; None for prompts that are no chat.
    """

    text: int
    kept: int
    answer_from: int | None
    new: tuple[int, ...]
    tokens: int
    mark: int | None = None


@dataclass(frozen=True)
class Trace:
    """waves: what is asked at once; each when the one before it has ended. prefixes: how many there are, of how many
    tokens; None where a trace is not about a number of them."""

    name: str
    waves: tuple[tuple[Ask, ...], ...]
    prefixes: tuple[int, int] | None = None

    @property
    def asks(self) -> list[Ask]:
        """All requests in order."""
        return [ask for wave in self.waves for ask in wave]

    @property
    def room(self) -> int:
        """Tokens of the longest prompt with its answer."""
        texts, most = Texts(), 0
        for ask in self.asks:
            prompt = texts.prompt(ask)
            texts.answered(ask, prompt, [0] * ask.tokens)
            most = max(most, len(prompt) + ask.tokens)
        return most

    def begun(self, n: int) -> Trace:
        """Its first waves, with n requests or a few more."""
        ends = accumulate(len(wave) for wave in self.waves)
        some = [wave for wave, end in zip(self.waves, ends, strict=True) if end - len(wave) < n]
        return Trace(self.name, tuple(some), self.prefixes)


class Texts:
    """What was asked and answered so far."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[list[int], list[int]]] = {}

    def prompt(self, ask: Ask) -> list[int]:
        """The request's prompt."""
        prompt, answer = self._last.get(ask.text, ([], []))
        own = [] if ask.answer_from is None else answer[ask.answer_from :]
        return prompt[: ask.kept] + own + list(ask.new)

    def answered(self, ask: Ask, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """What the model wrote."""
        self._last[ask.text] = list(prompt), list(answer)


@dataclass(frozen=True)
class Words:
    """What prompts are made of. plain: tokens that stand for some text. user, assistant, end: of a chat's messages.

    scale: of all lengths.
    """

    plain: Sequence[int]
    user: tuple[int, ...]
    assistant: tuple[int, ...]
    end: tuple[int, ...]
    scale: float = 1.0

    @classmethod
    def of(cls, model: Model, scale: float = 1.0) -> Words:
        """Those of a model's vocabulary."""
        seen = Random(0).sample(range(model.n_vocab), min(model.n_vocab, 4096))
        plain = [token for token in seen if model.token_bytes(token) and not model.ends_generation(token)]
        user, assistant, end = (tuple(model.tokenize(text)) for text in (USER, ASSISTANT, END))
        markup = {*user, *assistant, *end}
        return cls([token for token in plain if token not in markup], user, assistant, end, scale)

    def n(self, tokens: int) -> int:
        """A length, to scale."""
        return max(1, round(tokens * self.scale))

    def text(self, seed: object, tokens: int) -> tuple[int, ...]:
        """So many tokens, as they are."""
        return tuple(Random(str(seed)).choices(self.plain, k=tokens))

    def message(self, seed: object, tokens: int) -> tuple[int, ...]:
        """A user's, and the beginning of what the assistant says to it; so many tokens with these, or a few more."""
        markup = len(self.user) + len(self.end) + len(self.assistant)
        return self.user + self.text(seed, max(1, tokens - markup)) + self.end + self.assistant


def chat(words: Words, turns: int = 20) -> Trace:
    """A chat with thinking that the template drops once it was answered. A turn brings 200 tokens that stay: 120 of the
    user, 80 of the answer."""
    thinking, answer = words.n(60), words.n(80)
    asks: list[Ask] = []
    past = 0  # tokens of the last prompt that stay
    for turn in range(turns):
        message = words.message(("chat", turn), words.n(120))
        opened = words.text("thinking", OPENED)
        if not asks:
            new = words.text("system", words.n(60)) + message
            ask = Ask(0, 0, None, new + opened, thinking + answer, len(new))
            past = len(new)
        else:
            mark = past + answer + len(words.end) + len(message)
            ask = Ask(0, past, thinking, words.end + message + opened, thinking + answer, mark)
            past = mark
        asks.append(ask)
    return Trace(CHAT, tuple((ask,) for ask in asks))


def agents(words: Words, runs: int = 3, steps: int = 8) -> Trace:
    """Agents with one long system prompt: each has a task, calls tools and reads their results. Nothing is dropped."""
    system, call = words.text("tools", words.n(1500)), words.n(40)
    asks = []
    for run in range(runs):
        new = system + words.message(("task", run), words.n(60))
        asks.append(Ask(run, 0, None, new, call, len(new)))
        n = len(new)
        for step in range(1, steps):
            new = words.end + words.message(("result", run, step), words.n(150))
            asks.append(Ask(run, n, 0, new, call, n + call + len(new)))
            n += call + len(new)
    return Trace(AGENTS, tuple((ask,) for ask in asks))


def document(words: Words, questions: int = 6) -> Trace:
    """Questions about one document, each by itself."""
    text, asks = words.text("document", words.n(3000)), []
    for i in range(questions):
        prompt = text + words.message(("question", i), words.n(40))
        asks.append(Ask(i, 0, None, prompt, words.n(32), len(prompt)))
    return Trace(DOCUMENT, tuple((ask,) for ask in asks))


def _four(words: Words) -> list[Ask]:
    shared = words.text("shared", words.n(2000))
    return [Ask(i, 0, None, shared + words.text(("own", i), words.n(48)), words.n(8)) for i in range(4)]


def four(words: Words) -> Trace:
    """Four requests that share 2,000 tokens and have 48 of their own, one after the other."""
    return Trace(FOUR, tuple((ask,) for ask in _four(words)))


def at_once(words: Words) -> Trace:
    """The same four at once."""
    return Trace(AT_ONCE, (tuple(_four(words)),))


def _over_prefixes(name: str, message: Callable[[object, int], tuple[int, ...]], words: Words, *, chat: bool) -> Trace:
    choose, n, length = Random("prefixes"), 12, words.n(2000)
    texts = [words.text(("prefix", k), length) for k in range(n)]
    asks = []
    for i in range(200):
        (text,) = choose.choices(texts, [1 / (k + 1) for k in range(n)])
        prompt = text + message(("message", i), words.n(choose.randrange(20, 200)))
        asks.append(Ask(i, 0, None, prompt, words.n(choose.randrange(8, 33)), len(prompt) if chat else None))
    return Trace(name, tuple((ask,) for ask in asks), (n, length))


def prefixes(words: Words) -> Trace:
    """200 requests over 12 prefixes of 2,000 tokens, the k-th as often as 1 / k says (Zipf's law). Each has 20 to 199
    tokens of its own."""
    return _over_prefixes(PREFIXES, words.text, words, chat=False)


def messages(words: Words) -> Trace:
    """The same as chats: prefixes are system prompts, what follows is a user's first message."""
    return _over_prefixes(MESSAGES, words.message, words, chat=True)


def alone(words: Words, prompts: int = 16) -> Trace:
    """Prompts that share nothing."""
    asks = [Ask(i, 0, None, words.text(("alone", i), words.n(1024)), 1) for i in range(prompts)]
    return Trace(ALONE, tuple((ask,) for ask in asks))


def disk(words: Words) -> Trace:
    """A document of 8,192 tokens that is there already, and a prompt with 16 more."""
    length = words.n(8192)
    ask = Ask(0, 0, None, words.text("on disk", length) + words.text("after it", words.n(16)), words.n(8))
    return Trace(DISK, ((ask,),), (1, length))


MAKERS: dict[str, Callable[[Words], Trace]] = {
    CHAT: chat,
    AGENTS: agents,
    DOCUMENT: document,
    FOUR: four,
    AT_ONCE: at_once,
    PREFIXES: prefixes,
    MESSAGES: messages,
    ALONE: alone,
    DISK: disk,
}


def make(name: str, words: Words) -> Trace:
    """One of NAMES."""
    return MAKERS[name](words)


def unseen(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
    """Of each prompt, the tokens after its longest beginning that a text before it has: a prompt with its answer. So
    many would be read if all were kept."""
    asked = [as_tokens(prompt) for prompt in prompts]
    texts = [as_tokens([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    return [
        len(prompt) - max((shared(text, prompt) for text in texts[:i]), default=0) for i, prompt in enumerate(asked)
    ]
