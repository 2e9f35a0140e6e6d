"""Invalid and valid calls of LLM and Context in any order, from threads, with close() in between.

See fuzz.py. A call may succeed or raise PymtpError, TypeError or ValueError. After each dozen of requests, the LLM and
the Context (new ones, if they were closed) must give the same results as at first. Requests of several threads also
depend on timing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

import pymtp
from pymtp import LLM, Model, PymtpError, SamplingParams
from pymtp.context.context import Context
from pymtp.context.memory import plan_memory
from pymtp.sampling import Sampler

EXPECTED = (PymtpError, TypeError, ValueError)
GREEDY = SamplingParams(max_tokens=8)

NUMBERS: tuple[Any, ...] = (0, 1, 2, 3, 7, 64, 255, 256, 257, 2047, 2048, -1, -2, 2**31 - 1, 2**31, 2**32, 2**63, 2**64,
    -(2**31), -(2**63) - 1, 10**30, True, 0.0, 1.0, 0.5, -0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf,
    np.int32(3), np.int64(-1), np.float32(0.5), np.uint64(2**64 - 1), np.float64("nan"))  # fmt: skip
TEXTS = ("", "a", "import ", "\0", "\ud800", "é" * 300, "<|im_start|>", "x " * 400, "root", "{", "auto", "q8_0", "on")
THINGS: tuple[Any, ...] = (None, (), [], {}, [[]], [None], b"", b"bytes", object(), len, range(3), {"role": "user"},
    [1.5], [[1], [2]], ["a", ["b"]], np.zeros(3), np.zeros((2, 2), np.int64), np.array(7), np.array([]), Path("."),
    SamplingParams(), 1j, Ellipsis, {1: 2}, [2**40], [-1], [True, False], "import ", iter([1, 2]))  # fmt: skip
GRAMMARS = ('root ::= "a"*', 'root ::= ""', "root ::= root", "root ::= [a-z]+", "nonsense", 'root ::= "a"{3}', "")
SCHEMAS = ('{"type": "integer"}', {"type": "object"}, {"enum": [1, "a"]}, "[]", {"$ref": "#"}, {"type": "nothing"}, "{")


class Odd:
    """Makes random values, most of them invalid."""

    def __init__(self, numbers: random.Random) -> None:
        self.pick = numbers

    def some(self) -> Any:
        return self.pick.choice(self.pick.choice((NUMBERS, TEXTS, THINGS)))

    def number(self, *likely: int) -> Any:
        """Return one of the likely numbers, or rarely any value."""
        return self.pick.choice(likely) if self.pick.random() < 0.9 else self.some()

    def token(self) -> Any:
        return self.pick.randrange(2048) if self.pick.random() < 0.95 else self.some()

    def tokens(self, most: int = 40) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        if self.pick.random() < 0.05:
            return [7] * self.pick.choice((127, 128, 255, 256, 257, 3000))
        tokens = self.pick.choices(range(2048), k=self.pick.randrange(most))
        if tokens and self.pick.random() < 0.15:
            tokens[-1] = self.some()
        if self.pick.random() < 0.2 and all(isinstance(token, int) for token in tokens):
            return np.array(tokens)
        return self.pick.choice((list, tuple))(tokens)

    def batch(self) -> dict[Any, Any]:
        """Return prompts by sequence; a sequence may be anything that can be a key."""
        batch: dict[Any, Any] = {}
        for _ in range(self.pick.randrange(4)):
            with suppress(TypeError):
                batch[self.number(0, 1, 2, 3)] = self.tokens()
        return batch

    def prompt(self) -> Any:
        return self.pick.choice((self.tokens, self.tokens, self.some, lambda: self.pick.choice(TEXTS)))()

    def prompts(self) -> Any:
        return self.prompt() if self.pick.random() < 0.7 else [self.prompt() for _ in range(self.pick.randrange(4))]

    def keywords(self, likely: dict[str, Sequence[Any]], most: int) -> dict[str, Any]:
        """Return some of the keywords, with one of their likely values or with any value."""
        names = self.pick.sample(sorted(likely), self.pick.randrange(min(most, len(likely)) + 1))
        return {n: self.pick.choice(likely[n]) if self.pick.random() < 0.85 else self.some() for n in names}

    def sampling(self) -> dict[str, Any]:
        return {"max_tokens": 6} | self.keywords(SAMPLING, 4)

    def params(self) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        with suppress(*EXPECTED):
            return SamplingParams(**self.sampling())
        return GREEDY

    def sampler(self) -> Any:
        params = self.params()
        return Sampler(params) if isinstance(params, SamplingParams) else params


SAMPLING: dict[str, Sequence[Any]] = {f.name: NUMBERS for f in fields(SamplingParams)} | {
    "max_tokens": (1, 2, 9, 40),
    "temperature": (0, 0.7, 1, 1e-30, 1e30),
    "top_k": (0, 1, 40, 128, 5000),
    "stop": ("e", ["a", "b"], "never", ("",)),
    "logit_bias": ({}, {3: 1.0}, {3: -math.inf}, {5000: 1.0}, {i: -math.inf for i in range(2048)}, {1: 1e308}),
    "grammar": GRAMMARS,
    "json_schema": SCHEMAS,
    "logprobs": (0, 1, 5, 100),
}
OPTIONS: dict[str, Sequence[Any]] = {
    "n_ctx": (0, 1, 256, 300, 512),
    "n_threads": (1, 2),
    **dict.fromkeys(("n_batch", "n_ubatch"), (1, 3, 64, 2048)),
    **dict.fromkeys(("type_k", "type_v"), ("f16", "q8_0", "f32", "q4_0")),
    "flash_attn": ("auto", "on", "off"),
    "draft_tokens": (0, 1, 3, 8, 64),
    "tap": ("auto", "pre_norm", "post_norm"),
    "prefill": ("fused", "host-copy", "all-outputs"),
    "draws": ("auto", "host", "device"),
    "draft_vocab": ("auto", "all", 1, 500, 2**40),
}
LLM_OPTIONS = OPTIONS | {"cache_prompt": (True, False), "n_gpu_layers": (0, -1), "n_seq_max": (1, 2, 3)}
CONTEXT_OPTIONS = OPTIONS | {"n_seq_max": (1, 2, 3), "max_outputs": (1, 4, 64), "embeddings": (True,), "trace": (True,)}


REQUESTS_A_ROUND = 12
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_batch": 128, "n_ubatch": 64}


@dataclass
class State:
    """The objects that requests use."""

    odd: Odd
    model: Model
    streams: list[pymtp.Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.llm = LLM(self.model, draft_tokens=3, **SMALL)
        self.context = Context(self.model, draft_tokens=3, n_seq_max=3, embeddings=False, **SMALL)

    def renew(self) -> None:
        """Replace the objects that a request closed."""
        new = State(self.odd, self.model) if self.llm.closed or self.context.closed else self
        self.llm = new.llm if self.llm.closed else self.llm
        self.context = new.context if self.context.closed else self.context


Made = tuple[str, Callable[[], object]]  # a description, and the function that makes the request


def of(owner: str, call: Callable[..., object], *arguments: Any, **keywords: Any) -> Made:
    shown = [repr(a)[:200] for a in arguments] + [f"{name}={value!r:.200}" for name, value in keywords.items()]
    return f"{owner}({', '.join(shown)})", lambda: call(*arguments, **keywords)


def one_of(state: State, owner: str, target: object, calls: dict[str, Callable[[], Sequence[Any]]]) -> Made:
    name = state.odd.pick.choice([*calls])
    return of(f"{owner}.{name}", getattr(target, name), *calls[name]())


def call_llm(state: State) -> Made:
    odd = state.odd
    role, content = odd.pick.choice(("user", "system", "nobody")), odd.pick.choice(("hello", odd.some()))
    messages = odd.some() if odd.pick.random() < 0.3 else [{"role": role, "content": content}]
    calls: dict[str, Callable[[], Sequence[Any]]] = {
        **dict.fromkeys(("cancel", "figures"), tuple),
        **dict.fromkeys(("chat", "stream_chat"), lambda: (messages, odd.params())),
        "generate": lambda: (odd.prompts(), odd.params()),
    }
    return one_of(state, "llm", state.llm, calls)


def call_stream(state: State) -> Made:
    """Read some pieces of a new or of an old stream, and close it or not."""
    odd, prompt, params = state.odd, state.odd.prompt(), state.odd.params()
    new, pieces, close = not state.streams or odd.pick.random() < 0.4, odd.pick.randrange(6), odd.pick.random() < 0.3

    def read(*_: object) -> None:
        if new:
            state.streams.append(state.llm.stream(prompt, params))
        stream = state.streams[-1] if new else odd.pick.choice(state.streams)
        for _ in zip(range(pieces), stream, strict=False):
            pass
        if close:
            stream.close()
            stream.completion  # noqa: B018 — it must be there

    return of(f"stream, new {new}, {pieces} pieces, close {close}: ", read, prompt, params)


def call_context(state: State) -> Made:
    odd, context, owner = state.odd, state.context, "context"
    if odd.pick.random() < 1 / 3:
        with suppress(PymtpError):
            context, owner = state.llm.context, "llm.context"
    seq = odd.number(0, 0, 0, 1, 2)
    calls: dict[str, Callable[[], Sequence[Any]]] = {
        **dict.fromkeys(("embeddings", "logprobs", "memory"), tuple),
        **dict.fromkeys(("first_token", "clear", "tokens", "tokens_held"), lambda: (seq,)),
        **dict.fromkeys(("prefill", "prefill_logits"), lambda: (odd.tokens(), seq)),
        **dict.fromkeys(("verify", "verify_chain"), lambda: (odd.tokens(6), seq)),
        "prefill_batch": lambda: (odd.batch(),),
        "draft": lambda: (odd.token(), seq),
        "set_sampling": lambda: (odd.sampler(), seq),
        "draft_chain": lambda: (odd.token(), odd.number(0, 1, 2, 3), seq),
        "rewind": lambda: (odd.number(0, 1, 5, 20), seq),
        "cancel": lambda: (odd.pick.random() < 0.3,),
    }
    if odd.pick.random() < 0.1:
        calls = {"trace": tuple, **dict.fromkeys(("head_rows", "head_state"), lambda: (seq,))}
        return one_of(state, f"{owner}.inspect", context.inspect, calls)
    return one_of(state, owner, context, calls)


def call_round(state: State) -> Made:
    """Run the steps of a correct round, but stop at any step, and leave the rest to the next requests."""
    odd, context = state.odd, state.context
    seq, steps, n = odd.pick.randrange(3), odd.pick.randint(1, 6), odd.pick.randint(0, 3)
    params, prompt = odd.params(), odd.pick.choices(range(2048), k=odd.pick.randint(1, 90))
    clears = odd.pick.random() < 0.7

    def round_of_steps(*_: object) -> None:
        if clears:
            context.clear(seq)
        context.set_sampling(Sampler(params), seq)
        context.prefill(prompt, seq)
        token = context.first_token(seq) if steps > 1 else 0
        drafts = context.draft_chain(token, n, seq)[0] if steps > 2 and n else []
        sampled = context.verify_chain([token, *drafts], seq) if steps > 3 else []
        if steps > 4 and len(sampled) <= len(drafts):
            context.rewind(context.tokens_held(seq) - len(drafts) + len(sampled) - 1, seq)
        if steps > 5:
            context.prefill(prompt[:5], seq)

    text = f"a round of context, clears {clears}, {steps} steps, {n} drafts, sequence {seq}: "
    return of(text, round_of_steps, prompt, params)


def make_new(state: State) -> Made:
    odd, model = state.odd, state.model
    prompt, params, tokens = odd.prompt(), odd.params(), odd.tokens()

    def text(**options: Any) -> None:
        with LLM(model, **SMALL | options) as llm:
            llm.generate(prompt, params)

    def logits(**options: Any) -> None:
        with Context(model, **SMALL | options) as context:
            context.prefill(tokens)

    def plan(**options: Any) -> None:
        with Model(vocab_only=True) as header:
            plan_memory(header, **{"n_ctx": 256} | options)

    calls: list[Made] = [
        of("LLM", text, **odd.keywords(LLM_OPTIONS, 3)),
        of("Context", logits, **odd.keywords(CONTEXT_OPTIONS, 3)),
        of("plan_memory", plan, **odd.keywords(OPTIONS | {"n_seq_max": (1, 2, 3)}, 3)),
        of("Model", lambda path: Model(path, vocab_only=True).close(), odd.some()),
        of("pymtp.generate", pymtp.generate, prompt, **SMALL | odd.sampling()),
    ]
    return odd.pick.choice(calls)


def close_some(state: State) -> Made:
    return state.odd.pick.choice((of("llm.close", state.llm.close), of("context.close", state.context.close)))


def in_threads(state: State) -> Made:
    """Make some requests at the same time, and maybe one that closes or cancels."""
    made = [make_one(state, KINDS) for _ in range(state.odd.pick.randint(2, 4))]
    if state.odd.pick.random() < 0.5:
        made.append(state.odd.pick.choice((close_some(state), of("llm.cancel", state.llm.cancel))))

    def request(call: Callable[[], object]) -> None:
        with suppress(*EXPECTED):
            call()

    def together() -> None:
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(request, [call for _, call in made]))

    return "threads: " + " | ".join(text for text, _ in made), together


Kinds = dict[Callable[[State], Made], int]  # with how often
KINDS: Kinds = {call_context: 30, call_round: 12, call_llm: 16, call_stream: 12}
KINDS |= {make_new: 12}
ALL_KINDS = KINDS | {close_some: 1, in_threads: 5}


def make_one(state: State, kinds: Kinds) -> Made:
    (kind,) = state.odd.pick.choices([*kinds], [*kinds.values()])
    return kind(state)


def llm_result(llm: LLM) -> Any:
    return llm.generate("import ", GREEDY).token_ids


def context_result(context: Context) -> Any:
    """Return the results of each sequence, from empty caches on."""
    context.cancel(False)
    context.clear()
    found = []
    for seq in range(context.n_seq_max):
        context.set_sampling(Sampler(GREEDY), seq)
        context.prefill([3, 1, 4, 1, 5], seq)
        first = context.first_token(seq)
        drafts, _ = context.draft_chain(first, 3, seq)
        found.append((first, drafts, context.verify_chain([first, *drafts], seq), context.inspect.head_state(seq)))
    return found


def play(rng: random.Random, rounds: int, note: Callable[[str], None]) -> Counter[str]:
    """Make rounds of requests. Raises AssertionError for other results than at first."""
    counts: Counter[str] = Counter()
    with Model() as model:
        state = State(Odd(rng), model)
        expected = llm_result(state.llm), context_result(state.context)
        for _ in range(rounds):
            for _ in range(REQUESTS_A_ROUND):
                text, request = make_one(state, ALL_KINDS)
                note(text)
                counts["requests"] += 1
                try:
                    request()
                except EXPECTED:
                    counts["requests refused"] += 1
            state.streams.clear()
            note("the same results as at first")
            state.renew()
            assert llm_result(state.llm) == expected[0], "another text from the LLM"
            assert context_result(state.context) == expected[1], "another result of the Context"
    return counts


class Fuzzed:
    """Requests to objects of the shipped model. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 120, 240, 8 << 30

    def __init__(self, folder: Path) -> None:
        """Take the shipped model: there is nothing to make."""

    def sound(self, place: Path) -> None:
        with Model() as model:
            llm_result(State(Odd(random.Random(0)), model).llm)

    def prepare(self, rng: random.Random, index: int, place: Path) -> tuple[list[str], Any]:
        return [], lambda note: play(rng, self.UNITS // REQUESTS_A_ROUND, note)
