"""Runs ten thousand requests on one LLM, with all that can happen to them, and checks results, cache and memory.

    pip install . typer
    python tools/checks/soak_requests.py --requests 10000

Threads and an AsyncLLM submit requests at random times: single prompts, lists, several completions, streams, with
shared beginnings (random_requests.py). Streams are closed or dropped; tasks are cancelled; now and then all requests
are. Native calls fail, also while prefixes are saved and loaded: with an exception after the decode, with one sequence
without finite logits, and in the middle of a copy. At the end:

- Each request has ended exactly once, as its caller was told; the engine's figures agree, and no request is running.
- The prefix cache was within cache_bytes after each request. No prefill is left, nothing is pinned, its counts are
  right, and each sequence holds the tokens that the cache knows.
- Some of the finished requests are repeated on an LLM with one sequence and no cache: the same tokens and
  log-probabilities, bit for bit.
- Each sequence prefills, drafts and verifies like a new context: the same bits of logits and of the head's cache.
- Resident memory is flat, while nothing runs and after each shape of round was run: the median of the last third of the
  requests against that of the second third. In the first third, malloc still grows for arrays of many sizes. Leaked
  requests are counted.
"""

from __future__ import annotations

import gc
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

import typer
from common import SCREEN, ModelFile, Output, Seed, resident, run_command, write_json
from helpers.holding import check_prefix_cache
from makers.new_texts import new_prompts
from random_requests import Outcome, RequestGenerator, RequestSpec
from run_requests import by_threads
from together import Alone

from pymtp import LLM, Model, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.request import Request
from pymtp.prefix_cache.store import PrefixFigures
from pymtp.sampling import Sampler

PHASES = 15  # memory is measured at the end of each, while nothing runs
SAMPLES = 200  # about so many outcomes are repeated
STATES = 6  # states of a sequence that the cache has room for
FAULTS = 0.003  # share of native calls that fail
DECODES = ("prefill_batch", "draft_chains", "verify_chains", "rewind")
COPIES, SAVES = ("copy_cells", "load_cells", "load"), ("save", "save_cells", "keep_cells")


@dataclass(frozen=True)
class Phase:
    """The results so far.

    told: requests by the finish reason that callers were told; "nothing" for dropped streams and cancelled tasks.
    ended: the same by the requests themselves.
    most_bytes: the maximum of cached bytes. exceeded: requests after which the cache was above its limit.
    alive: Request objects that still exist. wrong: inconsistent counts.
    """

    requests: int
    told: dict[str, int]
    ended: dict[str, int]
    faults: dict[str, int]
    rounds: int
    sequences: float  # mean per round
    prefixes: PrefixFigures
    most_bytes: int
    exceeded: int
    alive: int
    resident: int
    wrong: str


class Faults:
    """Wraps calls of a context, so that some of them fail while it is `on`."""

    def __init__(self, context: Context, numbers: random.Random) -> None:
        """Wrap the calls of prefill and rounds, and those that save, load and copy."""
        self._context, self._numbers, self.on = context, numbers, True
        self.made: Counter[str] = Counter()
        wrapped = [(context, name, "decode") for name in DECODES] + [(context, "copy", "copy")]
        wrapped += [(context, "first_token", "no finite logits")]
        state_calls = {**dict.fromkeys(COPIES, "copy"), **dict.fromkeys(SAVES, "decode")}
        for owner, name, how in (*wrapped, *((context.state, name, how) for name, how in state_calls.items())):
            setattr(owner, name, self._wrapped(getattr(owner, name), how))

    def _wrapped(self, call: Callable[..., Any], how: str) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if not self.on or self._numbers.random() > FAULTS:
                return call(*arguments, **keywords)
            self.made[how] += 1
            if how == "no finite logits":
                raise NativeError("no finite logits, on purpose")
            self._context.inspect.break_on_purpose(f"{how}_throws")
            try:
                return call(*arguments, **keywords)
            finally:
                self._context.inspect.break_on_purpose("none")

        return wrapped


def play_shapes(context: Context, faults: Faults) -> None:
    """Run a round for each number of sequences and drafts, so that the same graphs are cached after any history."""
    faults.on = False
    for n in range(1, 1 + context.n_seq_max):
        for seq in range(n):
            context.set_sampling(Sampler(SamplingParams()), seq)
            context.clear(seq)
            context.prefill([1, 2, 3], seq)
        for depth in range(1 + context.draft_tokens):
            if depth:
                context.draft_chains(dict.fromkeys(range(n), 5), depth)
            context.verify_chains({seq: [5] * (1 + depth) for seq in range(n)})
    context.clear()
    faults.on = True


class Book:
    """Counts how often each request ended, and with which reason, and checks the size of the cache after each."""

    def __init__(self, llm: LLM, cache_bytes: int) -> None:
        self.most_bytes = self.exceeded = 0
        self.submitted: set[int] = set()
        self.times = bytearray()
        self.ended: Counter[str] = Counter()
        submit, submit_all, lock = llm._engine.submit, llm._make_requests, threading.Lock()

        def noted(prompts: Any, params: Any, *arguments: Any, **keywords: Any) -> list[Request]:
            self.submitted |= {id(one) for one in (params if isinstance(params, (list, tuple)) else [params])}
            return submit_all(prompts, params, *arguments, **keywords)

        def counted(request: Request) -> None:
            with lock:
                number, finish = len(self.times), request.finish
                self.times.append(0)

            def finished(reason: Any) -> None:
                finish(reason)
                self.times[number] += 1
                self.ended["failed" if request.error is not None else reason] += 1
                nbytes = llm.figures().prefixes.nbytes
                self.most_bytes = max(self.most_bytes, nbytes)
                self.exceeded += nbytes > cache_bytes

            request.finish = finished  # type: ignore[method-assign]
            submit(request)

        llm._engine.submit, llm._make_requests = counted, noted  # type: ignore[method-assign]


def added_up(llm: LLM, book: Book, told: Counter[str]) -> str:
    """Return a description of inconsistent counts, while nothing runs; "" for none."""
    figures, n, ended = llm.figures(), len(book.times), book.ended
    wrong = [f"{sum(times != 1 for times in book.times)} requests did not end once"] if set(book.times) > {1} else []
    if told.total() != n:
        wrong.append(f"{n} requests, and callers were told of {told.total()}")
    if figures.running or figures.waiting:
        wrong.append(f"{figures.running} run and {figures.waiting} wait")
    counted = [figures.finished, figures.cancelled, figures.failed]
    if counted != [ended["stop"] + ended["length"], ended["cancelled"], ended["failed"]]:
        wrong.append(f"{figures} does not count {dict(ended)}")
    return "; ".join(wrong)


def left_behind(llm: LLM) -> str:
    """Describe leaked pins and wrong records of the prefix cache, while nothing runs; "" for none."""
    try:
        check_prefix_cache(llm._engine)
    except AssertionError:
        return traceback.format_exc()
    return ""


def differences_from_fresh_llm(
    llm: LLM, settings: dict[str, Any], samples: Sequence[tuple[RequestSpec, Outcome]]
) -> list[str]:
    """Describe differences from a new LLM: in outcomes of requests, and in the sequences of the context."""
    differences, context = list[str](), llm.context
    with closing(Alone(llm.model, settings)) as alone:
        for spec, found in samples:
            if difference := found.difference(alone(spec, spec.params)):
                differences.append(f"{spec}: {difference}")
    prompt = (samples[0][0].prompt if samples else [1, 2, 3]) * 100
    with LLM(llm.model, n_seq_max=context.n_seq_max, cache_prompt=False, **settings) as fresh:
        for seq in range(context.n_seq_max):
            context.clear(seq)
            if _probe(context, prompt[:200], seq) != _probe(fresh.context, prompt[:200], seq):
                differences.append(f"sequence {seq} reads a prompt otherwise than a fresh one")
            context.clear(seq)
    return differences


def _probe(context: Context, prompt: Sequence[int], seq: int) -> list[bytes]:
    read = context.prefill(prompt, seq)
    drafts = [context.draft(token, seq) for token in (5, 6)]
    logits = [row.tobytes() for row in (read, *drafts, context.verify([5, 6, 7], seq))]
    return [*logits, context.inspect.head_state(seq)]


def soak_requests(
    model: Model, requests: int, *, seed: int = 0, phases: int = PHASES, states: float = STATES, **more: Any
) -> Iterator[Phase | list[str]]:
    """Yield the results after each phase, and at last the differences from a new LLM. more: options of the LLM."""
    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_ubatch": 128, "n_batch": 128} | more
    n_seq_max = settings.pop("n_seq_max", 6)
    texts = [model.tokenize(text) for text in new_prompts(12, 3000)]
    with LLM(model, n_seq_max=1, **settings) as llm:
        cache_bytes = int(states * llm.context.state.max_bytes)
    with LLM(model, cache_bytes=cache_bytes, n_seq_max=n_seq_max, **settings) as llm:
        book, faults, numbers = Book(llm, cache_bytes), Faults(llm.context, random.Random(seed)), random.Random(seed)
        told, samples = Counter[str](), list[tuple[RequestSpec, Outcome]]()
        generator = RequestGenerator(model, numbers, texts, llm.context.n_ctx, llm.context.n_ubatch)
        for phase in range(phases):
            n = requests * (phase + 1) // phases - requests * phase // phases
            specs = [shortened(spec) for spec in generator.make_many(n, n // 2)]
            found = by_threads(llm, specs, numbers, loop=phase % 2 == 0)
            for spec in specs:
                if (spec.number, 0) not in found and id(spec.params) in book.submitted:
                    told["nothing"] += spec.params.n
            book.submitted.clear()  # an id may come again
            for (number, i), one in found.items():
                told["nothing" if one.reason == "pieces" else one.reason] += 1
                if one.reason in ("stop", "length") and numbers.random() < SAMPLES / requests:
                    samples.append((replace(specs[number], params=specs[number].completions_params[i]), one))
                generator.answered(specs[number], one)
            llm._engine.process_queues()  # streams that were dropped last
            wrong = "; ".join(filter(None, (added_up(llm, book, told), left_behind(llm))))
            del specs, found
            play_shapes(llm.context, faults)
            llm._engine.prefix_cache.recover()  # the sequences hold other tokens now
            gc.collect()
            figures = llm.figures()
            yield Phase(
                requests=len(book.times),
                told=dict(told),
                ended=dict(book.ended),
                faults=dict(faults.made),
                rounds=figures.rounds,
                sequences=sum(n * times for n, times in figures.sequences.items()) / max(1, figures.rounds),
                prefixes=figures.prefixes,
                most_bytes=book.most_bytes,
                exceeded=book.exceeded,
                alive=sum(isinstance(one, Request) for one in gc.get_objects()),
                resident=resident(),
                wrong=wrong,
            )
        faults.on = False
        yield differences_from_fresh_llm(llm, settings, samples)


def shortened(spec: RequestSpec) -> RequestSpec:
    """Return the request with a quarter of its tokens."""
    most = spec.params.max_tokens
    return replace(spec, params=replace(spec.params, max_tokens=most if most is None else 1 + most // 4))


def main(
    model: ModelFile = None,
    requests: Annotated[int, typer.Option("--requests", "-r", min=PHASES)] = 10_000,
    seed: Seed = 0,
    n_seq_max: Annotated[int, typer.Option(min=1)] = 6,
    states: Annotated[float, typer.Option(help="Host memory for prefixes, in states of a sequence.")] = STATES,
    growth: Annotated[int, typer.Option(help="Allowed bytes of growth from the second third to the last.")] = 4_000_000,
    output: Output = None,
) -> None:
    """Run random requests; exit with status 1 if anything is wrong."""
    phases: list[Phase] = []
    differences: list[str] = []
    with closing(Model(model)) as loaded:
        for found in soak_requests(loaded, requests, seed=seed, n_seq_max=n_seq_max, states=states):
            if isinstance(found, list):
                differences = found
                continue
            phases.append(found)
            SCREEN.print(", ".join(f"{name} {value}" for name, value in vars(found).items()))
    third = len(phases) // 3
    grown = median(one.resident for one in phases[-third:]) - median(one.resident for one in phases[third:-third])
    SCREEN.print(f"{grown / 1e6:+.2f} MB from the second third to the last; {len(differences)} differ from a fresh LLM")
    SCREEN.print(*differences, sep="\n")
    write_json(output, "soak of requests", phases=phases, differences=differences)
    wrong = any(one.wrong or one.exceeded or one.alive > 1 for one in phases)
    raise typer.Exit(1 if differences or grown > growth or wrong else 0)


if __name__ == "__main__":
    run_command(main)
