"""Traces: sequences of requests with common prefixes, like those of chats, agents and questions about a document.

A trace defines all lengths, and how each prompt continues earlier texts. Prompts consist of random tokens, the same in
each run, and of the tokens that the model generated in this run, always the same number.
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
OPENED = 2  # tokens by which the template opens a thinking block, as with Qwen's vocabularyulary


@dataclass(frozen=True)
class TraceRequest:
    """A request of a trace.

    Its prompt consists of the first `reused` tokens of the last prompt of its text, the answer to that prompt from the
    token `answer_from` on (None for nothing of it), and `new`.

    text: number of the text that it continues. tokens: to be generated. branch_point: position from which the next
    prompt of a chat differs, for any answer, as LLM.chat finds it with the template; None for prompts that are no chat.
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

    waves: requests that are submitted at once, after the wave before has ended. prefixes: number and length of the
    trace's prefixes; None for a trace without a fixed number.
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
        """Return the tokens of the longest prompt with its answer."""
        history, longest = TraceHistory(), 0
        for request in self.requests:
            prompt = history.prompt(request)
            history.add(request, prompt, [0] * request.tokens)
            longest = max(longest, len(prompt) + request.tokens)
        return longest

    def first(self, n_requests: int) -> Trace:
        """Return a trace of the first waves, with n requests or the rest of their last wave."""
        ends = accumulate(len(wave) for wave in self.waves)
        waves = [wave for wave, end in zip(self.waves, ends, strict=True) if end - len(wave) < n_requests]
        return Trace(self.name, tuple(waves), self.prefixes)


class TraceHistory:
    """The last prompt and answer of each text of a trace."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[list[int], list[int]]] = {}

    def prompt(self, request: TraceRequest) -> list[int]:
        """Build the prompt of a request."""
        prompt, answer = self._last.get(request.text, ([], []))
        generated = [] if request.answer_from is None else answer[request.answer_from :]
        return prompt[: request.reused] + generated + list(request.new)

    def add(self, request: TraceRequest, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Record the prompt of a request, and the tokens that the model generated."""
        self._last[request.text] = list(prompt), list(answer)


@dataclass(frozen=True)
class TraceVocabulary:
    """The tokens of which prompts are made.

    plain: tokens with text. user, assistant, end: markup of a chat's messages. scale: factor of all lengths.
    """

    plain: Sequence[int]
    user: tuple[int, ...]
    assistant: tuple[int, ...]
    end: tuple[int, ...]
    scale: float = 1.0

    @classmethod
    def of(cls, model: Model, scale: float = 1.0) -> TraceVocabulary:
        """Choose tokens from a model's vocabulary."""
        sample = Random(0).sample(range(model.n_vocab), min(model.n_vocab, 4096))
        plain = [token for token in sample if model.token_bytes(token) and not model.ends_generation(token)]
        user, assistant, end = (tuple(model.tokenize(text)) for text in (USER, ASSISTANT, END))
        markup = {*user, *assistant, *end}
        return cls([token for token in plain if token not in markup], user, assistant, end, scale)

    def scaled(self, tokens: int) -> int:
        """Scale a length; at least 1."""
        return max(1, round(tokens * self.scale))

    def text(self, seed: object, tokens: int) -> tuple[int, ...]:
        """Return random plain tokens, the same for the same seed. tokens: their number, not scaled."""
        return tuple(Random(str(seed)).choices(self.plain, k=tokens))

    def message(self, seed: object, tokens: int) -> tuple[int, ...]:
        """Return a user's message and the header of the answer: `tokens` tokens, or a few more for a short one."""
        markup = len(self.user) + len(self.end) + len(self.assistant)
        return self.user + self.text(seed, max(1, tokens - markup)) + self.end + self.assistant


def chat(vocab: TraceVocabulary, turns: int = 20) -> Trace:
    """Make a chat whose template drops the thinking of earlier turns.

    A turn adds 200 tokens that later prompts reuse: 120 of the user, 80 of the answer.
    """
    thinking, answer = vocab.scaled(60), vocab.scaled(80)
    requests: list[TraceRequest] = []
    n_past = 0  # tokens of the last prompt that the next one reuses
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
    """Make agents with one long system prompt. Each has a task, calls tools and gets results; nothing is dropped."""
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
    """Make four requests with 2,000 common tokens and 48 of their own, one after the other."""
    return Trace(FOUR, tuple((request,) for request in _four(vocab)))


def at_once(vocab: TraceVocabulary) -> Trace:
    """Make the same four requests, all at once."""
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

    Each request has 20 to 199 tokens of its own.
    """
    return _over_prefixes(PREFIXES, vocab.text, vocab, chat=False)


def messages(vocab: TraceVocabulary) -> Trace:
    """Make the same requests as chats: the prefixes are system prompts, followed by a first user message."""
    return _over_prefixes(MESSAGES, vocab.message, vocab, chat=True)


def alone(vocab: TraceVocabulary, prompts: int = 16) -> Trace:
    """Make prompts without a common prefix."""
    requests = [TraceRequest(i, 0, None, vocab.text(("alone", i), vocab.scaled(1024)), 1) for i in range(prompts)]
    return Trace(ALONE, tuple((request,) for request in requests))


def disk(vocab: TraceVocabulary) -> Trace:
    """Make a document of 8,192 tokens, which comes from a prefix file, and a prompt with 16 more tokens."""
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
    """Make the trace of a name in NAMES."""
    return MAKERS[name](vocab)


def unseen(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each prompt, the number of tokens after the longest prefix shared with an earlier prompt and answer.

    A cache without limits would prefill exactly so many.
    """
    prompt_tokens = [as_tokens(prompt) for prompt in prompts]
    texts = [as_tokens([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    return [
        len(prompt) - max((common_prefix_length(text, prompt) for text in texts[:i]), default=0)
        for i, prompt in enumerate(prompt_tokens)
    ]
