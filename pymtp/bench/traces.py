"""Traces: sequences of requests with common prefixes, like those of chats, agents and questions about a document.

A trace defines the lengths of all prompts and answers, and which prompt continues which earlier prompt. Prompts consist
of random tokens, which are the same in each run, and of tokens that the model has generated as answers in this run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from pymtp.model.model import Model
from pymtp.prefix_cache.tree import as_tokens, common_prefix_length

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
OPENED = 2  # number of tokens with which the chat template opens a thinking block, as in Qwen's vocabulary


@dataclass(frozen=True)
class TraceRequest:
    """A request of a trace.

    A text is a conversation or document that several requests may continue. The prompt of a request consists of three
    parts: the first `reused` tokens of the text's last prompt, the answer to that prompt without its first
    `answer_from` tokens (None to leave out the whole answer), and the tokens `new`.

    text: number of the text that the request continues.
    tokens: number of tokens to generate.
    branch_point: position in the prompt up to which the next prompt of the chat is the same, whatever the answer, as
        LLM.chat finds it with the chat template; None for a prompt that is not a chat.
    """

    text: int
    reused: int
    answer_from: int | None
    new: tuple[int, ...]
    tokens: int
    branch_point: int | None = None


@dataclass(frozen=True)
class Trace:
    """A named sequence of requests.

    waves: groups of requests; those of a wave are submitted at once, when all requests of the previous wave have ended.
    prefixes: number of prefixes that the prompts begin with, and their length in tokens; None for a trace without a
        fixed number.
    """

    name: str
    waves: tuple[tuple[TraceRequest, ...], ...]
    prefixes: tuple[int, int] | None = None

    @property
    def requests(self) -> list[TraceRequest]:
        """Return all requests in order."""
        return [request for wave in self.waves for request in wave]

    @property
    def max_length(self) -> int:
        """Return the largest number of tokens of a prompt together with its answer."""
        history, longest = TraceHistory(), 0
        for request in self.requests:
            prompt = history.prompt(request)
            history.add(request, prompt, [0] * request.tokens)
            longest = max(longest, len(prompt) + request.tokens)
        return longest

    def first(self, n_requests: int) -> Trace:
        """Return a trace of the first waves: as few as have n_requests requests in total, without splitting a wave."""
        ends = accumulate(len(wave) for wave in self.waves)
        waves = [wave for wave, end in zip(self.waves, ends, strict=True) if end - len(wave) < n_requests]
        return Trace(self.name, tuple(waves), self.prefixes)


class TraceHistory:
    """The last prompt and answer of each text of a trace."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[list[int], list[int]]] = {}

    def prompt(self, request: TraceRequest) -> list[int]:
        """Build the prompt of a request from the last prompt and answer of its text."""
        prompt, answer = self._last.get(request.text, ([], []))
        generated = [] if request.answer_from is None else answer[request.answer_from :]
        return prompt[: request.reused] + generated + list(request.new)

    def add(self, request: TraceRequest, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Record the prompt of a request, and the tokens that the model generated."""
        self._last[request.text] = list(prompt), list(answer)


@dataclass(frozen=True)
class TraceVocabulary:
    """The tokens from which prompts are made.

    plain: tokens that are neither empty nor markup.
    user, assistant, end: markup tokens before a user's message, before an answer, and after either.
    scale: factor by which all lengths are multiplied.
    """

    plain: Sequence[int]
    user: tuple[int, ...]
    assistant: tuple[int, ...]
    end: tuple[int, ...]
    scale: float = 1.0

    @classmethod
    def of(cls, model: Model, scale: float = 1.0) -> TraceVocabulary:
        """Choose the tokens from a model's vocabulary."""
        sample = Random(0).sample(range(model.n_vocab), min(model.n_vocab, 4096))
        plain = [token for token in sample if model.token_bytes(token) and not model.ends_generation(token)]
        user, assistant, end = (tuple(model.tokenize(text)) for text in (USER, ASSISTANT, END))
        markup = {*user, *assistant, *end}
        return cls([token for token in plain if token not in markup], user, assistant, end, scale)

    def scaled(self, tokens: int) -> int:
        """Return a length multiplied by `scale` and rounded, at least 1."""
        return max(1, round(tokens * self.scale))

    def text(self, seed: object, tokens: int) -> tuple[int, ...]:
        """Return random plain tokens, which are the same for the same seed. tokens: their number, not scaled again."""
        return tuple(Random(str(seed)).choices(self.plain, k=tokens))

    def message(self, seed: object, tokens: int) -> tuple[int, ...]:
        """Return a user's message and the markup before its answer: `tokens` tokens, or a few more if that is short."""
        markup = len(self.user) + len(self.end) + len(self.assistant)
        return self.user + self.text(seed, max(1, tokens - markup)) + self.end + self.assistant


def chat(vocab: TraceVocabulary, turns: int = 20) -> Trace:
    """Make a chat whose template drops the thinking of earlier turns.

    Each turn adds 200 tokens that later prompts reuse: a message of 120 tokens, and an answer of 80 tokens.
    """
    thinking, answer = vocab.scaled(60), vocab.scaled(80)
    requests: list[TraceRequest] = []
    n_past = 0  # number of tokens of the last prompt that the next prompt reuses
    for turn in range(turns):
        message = vocab.message(("chat", turn), vocab.scaled(120))
        opened = vocab.text("thinking", OPENED)
        if not requests:
            new = vocab.text("system", vocab.scaled(60)) + message
            request = TraceRequest(0, 0, None, new + opened, thinking + answer, len(new))
            n_past = len(new)
        else:
            branch_point = n_past + answer + len(vocab.end) + len(message)
            new = vocab.end + message + opened
            request = TraceRequest(0, n_past, thinking, new, thinking + answer, branch_point)
            n_past = branch_point
        requests.append(request)
    return Trace(CHAT, tuple((request,) for request in requests))


def agents(vocab: TraceVocabulary, runs: int = 3, steps: int = 8) -> Trace:
    """Make agents that share one long system prompt.

    Each agent gets a task, calls tools and gets their results. Each prompt continues the agent's whole earlier text.
    """
    system, call = vocab.text("tools", vocab.scaled(1500)), vocab.scaled(40)
    requests = []
    for run in range(runs):
        new = system + vocab.message(("task", run), vocab.scaled(60))
        requests.append(TraceRequest(run, 0, None, new, call, len(new)))
        n = len(new)
        for step in range(1, steps):
            new = vocab.end + vocab.message(("result", run, step), vocab.scaled(150))
            requests.append(TraceRequest(run, n, 0, new, call, n + call + len(new)))
            n += call + len(new)
    return Trace(AGENTS, tuple((request,) for request in requests))


def document(vocab: TraceVocabulary, questions: int = 6) -> Trace:
    """Make independent questions about one document."""
    text, requests = vocab.text("document", vocab.scaled(3000)), []
    for i in range(questions):
        prompt = text + vocab.message(("question", i), vocab.scaled(40))
        requests.append(TraceRequest(i, 0, None, prompt, vocab.scaled(32), len(prompt)))
    return Trace(DOCUMENT, tuple((request,) for request in requests))


def _four(vocab: TraceVocabulary) -> list[TraceRequest]:
    common = vocab.text("shared", vocab.scaled(2000))
    return [
        TraceRequest(i, 0, None, common + vocab.text(("own", i), vocab.scaled(48)), vocab.scaled(8)) for i in range(4)
    ]


def four(vocab: TraceVocabulary) -> Trace:
    """Make four requests, one after the other, whose prompts have 2,000 common tokens and then 48 different ones."""
    return Trace(FOUR, tuple((request,) for request in _four(vocab)))


def at_once(vocab: TraceVocabulary) -> Trace:
    """Make the four requests of `four`, but submit all at once."""
    return Trace(AT_ONCE, (tuple(_four(vocab)),))


def _over_prefixes(
    name: str, message: Callable[[object, int], tuple[int, ...]], vocab: TraceVocabulary, *, chat: bool
) -> Trace:
    random, n, length = Random("prefixes"), 12, vocab.scaled(2000)
    texts = [vocab.text(("prefix", k), length) for k in range(n)]
    requests = []
    for i in range(200):
        (text,) = random.choices(texts, [1 / (k + 1) for k in range(n)])
        prompt = text + message(("message", i), vocab.scaled(random.randrange(20, 200)))
        requests.append(
            TraceRequest(i, 0, None, prompt, vocab.scaled(random.randrange(8, 33)), len(prompt) if chat else None)
        )
    return Trace(name, tuple((request,) for request in requests), (n, length))


def prefixes(vocab: TraceVocabulary) -> Trace:
    """Make 200 requests over 12 prefixes of 2,000 tokens; the k-th has a frequency proportional to 1 / k (Zipf's law).

    After its prefix, each prompt has 20 to 199 tokens that no other prompt has.
    """
    return _over_prefixes(PREFIXES, vocab.text, vocab, chat=False)


def messages(vocab: TraceVocabulary) -> Trace:
    """Make the requests of `prefixes` as chats: a prefix is a system prompt, followed by a first user message."""
    return _over_prefixes(MESSAGES, vocab.message, vocab, chat=True)


def alone(vocab: TraceVocabulary, prompts: int = 16) -> Trace:
    """Make prompts that share no prefix."""
    requests = [TraceRequest(i, 0, None, vocab.text(("alone", i), vocab.scaled(1024)), 1) for i in range(prompts)]
    return Trace(ALONE, tuple((request,) for request in requests))


def disk(vocab: TraceVocabulary) -> Trace:
    """Make one prompt: a document of 8,192 tokens, whose state is loaded from a prefix file, and 16 more tokens."""
    length = vocab.scaled(8192)
    prompt = vocab.text("on disk", length) + vocab.text("after it", vocab.scaled(16))
    request = TraceRequest(0, 0, None, prompt, vocab.scaled(8))
    return Trace(DISK, ((request,),), (1, length))


MAKERS: dict[str, Callable[[TraceVocabulary], Trace]] = {
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


def make(name: str, vocab: TraceVocabulary) -> Trace:
    """Make a trace by its name, one of NAMES."""
    return MAKERS[name](vocab)


def unseen(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each prompt, the number of tokens after the longest prefix shared with an earlier prompt and answer.

    A cache without limits would prefill exactly these tokens.
    """
    prompt_tokens = [as_tokens(prompt) for prompt in prompts]
    texts = [as_tokens([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    return [
        len(prompt) - max((common_prefix_length(text, prompt) for text in texts[:i]), default=0)
        for i, prompt in enumerate(prompt_tokens)
    ]
