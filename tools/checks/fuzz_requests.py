"""Odd requests on LLM and Context: wrong types, ranges and sizes, any order, several threads, close() in the middle.

    pip install . typer
    python tools/checks/fuzz_requests.py --requests 20000 --seed 1 --jobs 2

Rounds of a dozen requests run in worker processes. A request may do what it says or raise PymtpError, TypeError or
ValueError. After each round the LLM and the Context must answer as they did at first; where they were closed, new ones
must. What is reported, each with the round that brings it back (--seed N --round R):

- a process that ended or hung, with the last request,
- an exception of another type,
- another answer after the round.

Rounds with threads depend on timing too.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from limits import limit_memory

import pymtp
from pymtp import LLM, Model, PymtpError, SamplingParams
from pymtp.context import Context
from pymtp.memory import plan_memory
from pymtp.sampling import Sampler

REQUESTS_A_ROUND = 12
ROUND_SECONDS = 120  # a round takes less than one, but for a busy machine
MEMORY = 8 << 30  # bytes of address space: what asks for more is refused by the system, and no other process suffers
EXPECTED = (PymtpError, TypeError, ValueError)
GREEDY = SamplingParams(max_tokens=8)
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_batch": 128, "n_ubatch": 64}
PROBE = [3, 1, 4, 1, 5]

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
    """Values to ask with, most of them wrong."""

    def __init__(self, numbers: random.Random) -> None:
        self.pick = numbers

    def some(self) -> Any:
        return self.pick.choice(self.pick.choice((NUMBERS, TEXTS, THINGS)))

    def number(self, *likely: int) -> Any:
        """Usually one of the likely numbers."""
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

    def prompts_by_sequence(self) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        return {self.pick.choice((0, 1, 2, 3, "a", 2**40)): self.tokens() for _ in range(self.pick.randrange(4))}

    def prompt(self) -> Any:
        return self.pick.choice((self.tokens, self.tokens, self.some, lambda: self.pick.choice(TEXTS)))()

    def prompts(self) -> Any:
        return self.prompt() if self.pick.random() < 0.7 else [self.prompt() for _ in range(self.pick.randrange(4))]

    def keywords(self, likely: dict[str, Sequence[Any]], most: int) -> dict[str, Any]:
        """Some of the keywords, with one of their likely values or with any."""
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
    "n_batch": (1, 3, 64, 2048),
    "n_ubatch": (1, 3, 64, 2048),
    "n_threads": (1, 2),
    "type_k": ("f16", "q8_0", "f32", "q4_0"),
    "type_v": ("f16", "q8_0", "f32", "q4_0"),
    "flash_attn": ("auto", "on", "off"),
    "draft_tokens": (0, 1, 3, 8, 64),
    "tap": ("auto", "pre_norm", "post_norm"),
    "prefill": ("fused", "host-copy", "all-outputs"),
    "draws": ("auto", "host", "device"),
    "draft_vocab": ("auto", "all", 1, 500, 2**40),
}
LLM_OPTIONS = OPTIONS | {"cache_prompt": (True, False), "n_gpu_layers": (0, -1), "n_seq_max": (1, 2, 3)}
CONTEXT_OPTIONS = OPTIONS | {"n_seq_max": (1, 2, 3), "max_outputs": (1, 4, 64), "embeddings": (True,), "trace": (True,)}


@dataclass
class State:
    """What the requests are made of. llm, context: replaced where a round left them closed."""

    odd: Odd
    model: Model
    llm: LLM
    context: Context
    streams: list[pymtp.Stream] = field(default_factory=list)


Request = Callable[[], object]
Made = tuple[str, Request]  # its text, and what runs it


def said(name: str, *arguments: Any, **keywords: Any) -> str:
    shown = [repr(a)[:200] for a in arguments] + [f"{name}={value!r:.200}" for name, value in keywords.items()]
    return f"{name}({', '.join(shown)})"


def of(owner: str, target: object, name: str, *arguments: Any, **keywords: Any) -> Made:
    return said(f"{owner}.{name}", *arguments, **keywords), lambda: getattr(target, name)(*arguments, **keywords)


def used_stream(stream: pymtp.Stream, pieces: int, close: bool) -> None:
    for _ in zip(range(pieces), stream, strict=False):
        pass
    if close:
        stream.close()
        stream.completion  # noqa: B018 — it must be there


def ask_llm(state: State) -> Made:
    odd, llm = state.odd, state.llm

    def stream() -> None:
        state.streams.append(llm.stream(prompt, params))
        used_stream(state.streams[-1], pieces, close)

    prompt, params = odd.prompt(), odd.params()
    pieces, close = odd.pick.randrange(6), odd.pick.random() < 0.3
    role, content = odd.pick.choice(("user", "system", "nobody")), odd.pick.choice(("hello", odd.some()))
    messages = [{"role": role, "content": content}]
    asked: list[Callable[[], Made]] = [
        lambda: of("llm", llm, "generate", odd.prompts(), params),
        lambda: of("llm", llm, "chat", odd.some() if odd.pick.random() < 0.4 else messages, params),
        lambda: (f"{said('llm.stream', prompt, params)}, {pieces} pieces, close {close}", stream),
        lambda: of("llm", llm, "stream_chat", messages, params),
        lambda: of("llm", llm, "cancel"),
        lambda: of("llm", llm, "figures"),
    ]
    return odd.pick.choice(asked)()


def ask_stream(state: State) -> Made:
    if not state.streams:
        return ask_llm(state)
    stream, pieces = state.odd.pick.choice(state.streams), state.odd.pick.randrange(4)
    return f"an old stream, {pieces} pieces", lambda: used_stream(stream, pieces, close=pieces > 1)


def ask_context(state: State) -> Made:
    odd = state.odd
    name, context = odd.pick.choice((("context", state.context), ("context", state.context), ("llm.context", None)))
    if context is None:
        try:
            context = state.llm.context
        except PymtpError:
            context = state.context
    seq = odd.number(0, 0, 0, 1, 2)
    arguments: dict[str, Callable[[], Sequence[Any]]] = {
        "prefill": lambda: (odd.tokens(), seq),
        "prefill_batch": lambda: (odd.prompts_by_sequence(),),
        "prefill_logits": lambda: (odd.tokens(12), seq),
        "embeddings": lambda: (),
        "draft": lambda: (odd.token(), seq),
        "verify": lambda: (odd.tokens(6), seq),
        "set_sampling": lambda: (odd.sampler(), seq),
        "first_token": lambda: (seq,),
        "draft_chain": lambda: (odd.token(), odd.number(0, 1, 2, 3), seq),
        "verify_chain": lambda: (odd.tokens(6), seq),
        "logprobs": lambda: (),
        "rewind": lambda: (odd.number(0, 1, 5, 20), seq),
        "clear": lambda: (seq,),
        "cancel": lambda: (odd.pick.random() < 0.3,),
        "tokens": lambda: (seq,),
        "tokens_held": lambda: (seq,),
        "rows_held": lambda: (seq,),
        "head_state": lambda: (seq,),
        "memory": lambda: (),
        "trace": lambda: (),
    }
    method = odd.pick.choice(sorted(arguments))
    return of(name, context, method, *arguments[method]())


def ask_round(state: State) -> Made:
    """A round as it should be, which may stop at any step and leave the rest to the requests that follow."""
    odd, context = state.odd, state.context
    seq, steps, n = odd.pick.randrange(3), odd.pick.randint(1, 6), odd.pick.randint(0, 3)
    params, prompt = odd.params(), odd.pick.choices(range(2048), k=odd.pick.randint(1, 90))
    clears = odd.pick.random() < 0.7

    def round_of_steps() -> None:
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

    text = f"a round of context, clears {clears}, {steps} steps, {n} drafts, sequence {seq}, {len(prompt)} tokens"
    return f"{text}, {params!r:.200}", round_of_steps


def ask_model(state: State) -> Made:
    odd, model = state.odd, state.model

    def grammar(text: Any) -> None:
        with model.grammar(text):
            pass

    text = odd.pick.choice((odd.some(), *GRAMMARS))
    asked: list[Callable[[], Made]] = [
        lambda: of("model", model, "tokenize", odd.some(), add_special=odd.pick.random() < 0.5),
        lambda: of("model", model, "detokenize", odd.tokens()),
        lambda: of("model", model, "token_bytes", odd.token()),
        lambda: of("model", model, "ends_generation", odd.token()),
        lambda: of("model", model, "check_tokens", odd.tokens()),
        lambda: (said("model.grammar", text), lambda: grammar(text)),
    ]
    return odd.pick.choice(asked)()


def ask_sampler(state: State) -> Made:
    odd = state.odd

    def sample() -> None:
        Sampler(SamplingParams(**sampling)).sample(row, position, before)

    sampling = odd.sampling() | {"grammar": None, "json_schema": None}
    row = odd.pick.choice((np.zeros(50), np.full(50, np.nan), np.zeros((5, 5)), odd.some()))
    position, before = odd.number(0, 5), odd.pick.choice(([], [1, 2], odd.tokens()))
    return said("Sampler.sample", row, position, before, **sampling), sample


def make_new(state: State) -> Made:
    odd, model = state.odd, state.model

    def text(options: dict[str, Any]) -> None:
        with LLM(model, **SMALL | options) as llm:
            llm.generate(prompt, params)

    def logits(options: dict[str, Any]) -> None:
        with Context(model, **SMALL | options) as context:
            context.prefill(tokens)

    def plan(options: dict[str, Any]) -> None:
        with Model(vocab_only=True) as looked_at:
            plan_memory(looked_at, **{"n_ctx": 256} | options)

    prompt, params, tokens = odd.prompt(), odd.params(), odd.tokens()
    path, options = odd.some(), odd.keywords(CONTEXT_OPTIONS, 3)
    llm_options, sampling = odd.keywords(LLM_OPTIONS, 3), odd.sampling()
    asked: list[Made] = [
        (said("LLM", **llm_options), lambda: text(llm_options)),
        (said("Context", **options), lambda: logits(options)),
        (said("plan_memory", **options), lambda: plan(options)),
        (said("SamplingParams", **sampling), lambda: SamplingParams(**sampling)),
        (said("Model", path), lambda: Model(path, vocab_only=True).close()),
        (said("pymtp.generate", prompt, **sampling), lambda: pymtp.generate(prompt, **SMALL | sampling)),
    ]
    return odd.pick.choice(asked)


def close_some(state: State) -> Made:
    owner, target = state.odd.pick.choice((("llm", state.llm), ("context", state.context)))
    return of(owner, target, "close")


def in_threads(state: State) -> Made:
    """Some requests at the same time, and perhaps one that closes or cancels."""
    made = [make_one(state, KINDS) for _ in range(state.odd.pick.randint(2, 4))]
    if state.odd.pick.random() < 0.5:
        made.append(state.odd.pick.choice((close_some(state), of("llm", state.llm, "cancel"))))

    def together() -> None:
        wrong: list[Exception] = []

        def work(request: Request) -> None:
            try:
                request()
            except EXPECTED:
                pass
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(request,)) for _, request in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            raise wrong[0]

    return "threads: " + " | ".join(text for text, _ in made), together


KINDS: tuple[tuple[Callable[[State], Made], int], ...] = (
    (ask_context, 30),
    (ask_round, 12),
    (ask_llm, 20),
    (ask_stream, 8),
    (ask_model, 8),
    (ask_sampler, 4),
    (make_new, 12),
)
ALL_KINDS = (*KINDS, (close_some, 1), (in_threads, 5))


def make_one(state: State, kinds: Sequence[tuple[Callable[[State], Made], int]]) -> Made:
    (kind,) = state.odd.pick.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
    return kind(state)


def new_llm(model: Model) -> LLM:
    return LLM(model, draft_tokens=3, **SMALL)


def new_context(model: Model) -> Context:
    return Context(model, draft_tokens=3, n_seq_max=3, embeddings=False, **SMALL)


def text_of(llm: LLM) -> Any:
    return llm.generate("import ", GREEDY).token_ids


def rows_of(context: Context) -> Any:
    """What each sequence answers, from empty caches on, as bytes."""
    context.cancel(False)
    context.clear()
    found = []
    for seq in range(context.n_seq_max):
        context.set_sampling(Sampler(GREEDY), seq)
        context.prefill(PROBE, seq)
        first = context.first_token(seq)
        drafts, _ = context.draft_chain(first, 3, seq)
        found.append((first, drafts, context.verify_chain([first, *drafts], seq), context.head_state(seq)))
    return found


def run_rounds(seed: int, rounds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Runs them. Says what is about to be asked, and what was found."""
    model = Model()
    llm, context = new_llm(model), new_context(model)
    wanted_text, wanted_rows = text_of(llm), rows_of(context)
    for number in rounds:
        state = State(Odd(random.Random(f"{seed}/{number}")), model, llm, context)
        for _ in range(REQUESTS_A_ROUND):
            text, request = make_one(state, ALL_KINDS)
            yield {"request": text}
            try:
                request()
                yield {"done": text}
            except EXPECTED:
                pass
            except Exception as error:
                yield {"found": f"{type(error).__name__}: {error}", "after": text}
        state.streams.clear()
        yield {"request": "the same answers as at first"}
        try:
            if llm._closed:
                llm = new_llm(model)
            if context._closed:
                context = new_context(model)
            if text_of(llm) != wanted_text:
                yield {"found": "another text from the LLM"}
                llm = new_llm(model)
            if rows_of(context) != wanted_rows:
                yield {"found": "another answer of the Context"}
                context = new_context(model)
        except Exception as error:
            yield {"found": f"after the round, {type(error).__name__}: {error}"}
            llm, context = new_llm(model), new_context(model)
        yield {"end": number}


def work(seed: int, rounds: Sequence[int]) -> None:
    """A worker process: a line of JSON for each thing said."""
    limit_memory(MEMORY)
    for said_now in run_rounds(seed, rounds):
        print(json.dumps(said_now), flush=True)


@dataclass
class Watch:
    """The rounds of one worker after another, and what came of them."""

    seed: int
    left: list[int]
    n_requests: int = 0
    n_done: int = 0  # the others were refused
    findings: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> Watch:
        """A new worker after each that ends early."""
        while self.left:
            arguments = [sys.executable, __file__, "--worker", ",".join(map(str, self.left)), "--seed", str(self.seed)]
            quiet = os.environ | {"GGML_NO_BACKTRACE": "1"}
            with (
                tempfile.TemporaryFile("w+") as errors,
                subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True, env=quiet) as worker,
            ):
                asked = self._listen(worker)
                code = worker.wait()
                errors.seek(0)
                words = errors.read()[:1000].splitlines()
            if code:
                self._note(f"the process ended with {code}", requests=asked, stderr=words)
                del self.left[0]
            elif words:
                self._note("wrote to stderr", stderr=words)
        return self

    def _listen(self, worker: subprocess.Popen[str]) -> list[str]:
        """Until it ends. Returns what was asked in the round that it was in."""
        asked: list[str] = []
        alarm = threading.Timer(ROUND_SECONDS, worker.kill)
        alarm.start()
        assert worker.stdout is not None
        for line in worker.stdout:
            try:
                heard = json.loads(line)
            except ValueError:
                self._note("printed", line=line, after=asked[-1:])
                continue
            if "found" in heard:
                self._note(**heard)
            elif "request" in heard:
                asked.append(heard["request"])
                self.n_requests += 1
            elif "done" in heard:
                self.n_done += 1
            else:
                del self.left[0]
                asked.clear()
                alarm.cancel()
                alarm = threading.Timer(ROUND_SECONDS, worker.kill)
                alarm.start()
        alarm.cancel()
        return asked

    def _note(self, found: str, **more: Any) -> None:
        at = f"--seed {self.seed} --round {self.left[0]}" if self.left else f"--seed {self.seed}"
        self.findings.append({"found": found, "again": at, **more})


def main(
    requests: Annotated[int, typer.Option(min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Of all that is asked.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes at a time.")] = 2,
    only: Annotated[int | None, typer.Option("--round", help="Run this round alone.")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Exit status 1 when something was found."""
    if worker is not None:
        work(seed, [int(number) for number in worker.split(",")])
        return
    rounds = list(range(math.ceil(requests / REQUESTS_A_ROUND))) if only is None else [only]
    with ThreadPoolExecutor(jobs) as pool:
        watches = list(pool.map(Watch.run, [Watch(seed, rounds[i::jobs]) for i in range(jobs)]))
    findings = [finding for watch in watches for finding in watch.findings]
    for finding in findings:
        print(json.dumps(finding, indent=1))
    kinds = Counter(finding["found"][:60] for finding in findings)
    made = sum(watch.n_requests for watch in watches)
    done = sum(watch.n_done for watch in watches)
    print(f"{made} requests, {made - done} refused, in {len(rounds)} rounds, seed {seed}: {len(findings)} findings")
    for kind, n in kinds.most_common():
        print(f"{n:>6} {kind}")
    raise typer.Exit(1 if findings else 0)


if __name__ == "__main__":
    typer.run(main)
