"""Random calls of pymtp's objects, also from several threads and with close(), for fuzz_requests.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from odd_values import CONTEXT_OPTIONS, EXPECTED, GRAMMARS, LLM_OPTIONS, Odd

import pymtp
from pymtp import LLM, Model, PymtpError, SamplingParams
from pymtp.context.context import Context
from pymtp.context.memory import plan_memory
from pymtp.sampling import Sampler

SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_batch": 128, "n_ubatch": 64}


@dataclass
class State:
    """The objects that requests use. llm, context: replaced if a round closed them."""

    odd: Odd
    model: Model
    llm: LLM
    context: Context
    streams: list[pymtp.Stream] = field(default_factory=list)


Request = Callable[[], object]
Made = tuple[str, Request]  # a description, and the function that makes the request


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
    """Run the steps of a correct round, but stop at any step, and leave the rest to the next requests."""
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
    """Make some requests at the same time, and maybe one that closes or cancels."""
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
