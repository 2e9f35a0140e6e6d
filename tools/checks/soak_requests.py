"""Runs ten thousand requests on one LLM, with all that can happen to them, and checks results and memory.

    pip install . typer
    python tools/checks/soak_requests.py --requests 10000

Threads and an AsyncLLM submit requests at random times: single prompts, lists, several completions, streams. Streams
are closed or dropped; tasks are cancelled; now and then all requests are. Native calls fail: with an exception after
the decode, with one sequence without finite logits, and with an exception of a signal handler before or after a call.
At the end:

- Each request has ended exactly once, as its caller was told; the engine's figures agree, and no request is running.
- Some of the finished requests are repeated on a new LLM: the same tokens and log-probabilities, bit for bit.
- Each sequence prefills, drafts and verifies like a new context: the same bits of logits.
- Resident memory is compared while nothing runs and after each shape of round was run: the median of the second half
  against that of the first. Cached graphs move it by a few MB; leaked requests are counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from random_faults import Faults, Interrupt, play_shapes
from random_requests import Outcome, RequestGenerator, RequestSpec, outcome
from rich.console import Console
from soak import resident

from pymtp import LLM, AsyncLLM, Completion, Model, PymtpError, SamplingParams
from pymtp.context.context import Context
from pymtp.engine.request import Request

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

THREADS = 5  # beside an event loop
PHASES = 10  # memory is measured at the end of each, while nothing runs
CANCELS = 0.002  # share of requests that cancel all running ones
SAMPLES = 200  # maximum number of outcomes to repeat


@dataclass(frozen=True)
class Phase:
    """The results so far.

    told: requests by the finish reason that callers were told; "nothing" for dropped streams, cancelled tasks, and
    calls that an Interrupt left. ended: the same by the requests themselves.
    alive: Request objects that still exist. wrong: inconsistent counts.
    """

    requests: int
    told: dict[str, int]
    ended: dict[str, int]
    faults: dict[str, int]
    rounds: int
    sequences: float  # mean per round
    alive: int
    resident: int
    wrong: str


class Book:
    """Counts how often each request ended, and with which reason."""

    def __init__(self, llm: LLM) -> None:
        self._submit = llm._engine.submit
        self._lock = threading.Lock()
        self.times = bytearray()
        self.ended: Counter[str] = Counter()
        llm._engine.submit = self.submit  # type: ignore[method-assign]

    def submit(self, request: Request) -> None:
        with self._lock:
            number = len(self.times)
            self.times.append(0)
        finish = request.finish

        def counted(reason: Any) -> None:
            finish(reason)
            self.times[number] += 1
            self.ended["failed" if request.error is not None else reason] += 1

        request.finish = counted  # type: ignore[method-assign]
        self._submit(request)


class Callers:
    """Threads and tasks that make requests, and record the results they get."""

    def __init__(self, llm: LLM, texts: Sequence[Sequence[int]], seed: int) -> None:
        self.llm, self._texts, self._seed = llm, texts, seed
        self.told: Counter[str] = Counter()
        self.samples: list[tuple[RequestSpec, Outcome]] = []
        self._complete = 0
        self._choose = random.Random(seed)
        self._lock = threading.Lock()
        self._left = 0
        self._phase = 0
        # params of tasks by id(): submitted requests, and those of cancelled tasks, which may not have submitted any
        self._asked: dict[int, SamplingParams] = {}
        self._gone: list[SamplingParams] = []
        self._submit = llm._make_requests
        llm._make_requests = self._record_submit  # type: ignore[method-assign]

    def _record_submit(self, prompts: Any, params: Any, *arguments: Any, **keywords: Any) -> list[Request]:
        self._asked[id(params)] = params
        return self._submit(prompts, params, *arguments, **keywords)

    def add_gone(self) -> None:
        """Count the cancelled tasks that had submitted a request. Nothing may be running."""
        self.told["nothing"] += sum(params.n for params in self._gone if id(params) in self._asked)
        self._gone.clear()
        self._asked.clear()

    def play(self, requests: int, *, loop: bool) -> None:
        """Make so many requests. loop: also from coroutines, whose AsyncLLM's thread then runs the engine."""
        self._left = requests
        self._phase += 1
        threads = [threading.Thread(target=self._work, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        if loop:
            asyncio.run(self._loop())
        for thread in threads:
            thread.join()

    def _next(self, generator: RequestGenerator, numbers: random.Random) -> RequestSpec | None:
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
        if numbers.random() < CANCELS:
            self.llm.cancel()
        spec = generator.make()
        most = spec.params.max_tokens
        return replace(spec, params=replace(spec.params, max_tokens=most if most is None else 1 + most // 4))

    def _made(self, i: int) -> tuple[RequestGenerator, random.Random]:
        numbers = random.Random(f"{self._seed} {self._phase} {i}")
        return RequestGenerator(self.llm.model, numbers, self._texts, self.llm.context.n_ctx), numbers

    def _tell(self, spec: RequestSpec, found: Completion | PymtpError) -> None:
        with self._lock:
            if isinstance(found, PymtpError):
                self.told["failed"] += spec.params.n
                return
            for i, one in enumerate((found, *found.others)):
                self.told[one.finish_reason] += 1
                if one.finish_reason != "cancelled":
                    self._sample(replace(spec, params=spec.completions_params[i]), outcome(one))

    def _sample(self, spec: RequestSpec, found: Outcome) -> None:
        """Add an outcome to the samples by reservoir sampling: each is equally likely to be among them."""
        self._complete += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((spec, found))
        elif (i := self._choose.randrange(self._complete)) < SAMPLES:
            self.samples[i] = spec, found

    def _tell_nothing(self, n: int) -> None:
        with self._lock:
            self.told["nothing"] += n

    def _work(self, i: int) -> None:
        generator, numbers = self._made(i)
        while (spec := self._next(generator, numbers)) is not None:
            time.sleep(numbers.choice((0.0, 0.0, 0.001, 0.02)))
            group = [spec]
            while spec.call == "list" and len(group) < 6 and (another := self._next(generator, numbers)) is not None:
                group.append(another)
            try:
                if spec.call == "stream":
                    self._read(spec, numbers)
                else:
                    self._generate(group)
            except Interrupt:
                self._tell_nothing(sum(each.params.n for each in group))

    def _generate(self, group: Sequence[RequestSpec]) -> None:
        try:
            done: Sequence[Completion | PymtpError] = self.llm.generate(
                [spec.prompt for spec in group], [spec.params for spec in group], priority=group[0].priority
            )
        except PymtpError as error:
            done = error.completions
        for spec, one in zip(group, done, strict=True):
            self._tell(spec, one)

    def _read(self, spec: RequestSpec, numbers: random.Random) -> None:
        stream = self.llm.stream(spec.prompt, spec.params, priority=spec.priority)
        tokens = 0
        try:
            for piece in stream:
                tokens += len(piece.token_ids)
                time.sleep(numbers.choice((0.0, 0.0, 0.0, 0.005)))
                if spec.cancel_after is not None and tokens >= spec.cancel_after:
                    if numbers.random() < 0.5:
                        self._tell_nothing(1)
                        return  # the stream is dropped
                    stream.close()
                    break
        except PymtpError as error:
            self._tell(spec, error)
            return
        self._tell(spec, stream.completion)

    async def _loop(self) -> None:
        generator, numbers = self._made(THREADS)
        async with AsyncLLM(self.llm) as shared:

            async def work() -> None:
                while (spec := self._next(generator, numbers)) is not None:
                    await asyncio.sleep(numbers.choice((0.0, 0.001, 0.02)))
                    longest = None if spec.cancel_after is None else spec.cancel_after / 1000
                    ask = self._pieces if spec.call == "stream" else self._ask
                    try:
                        await asyncio.wait_for(ask(shared, spec), longest)
                    except TimeoutError:
                        self._gone.append(spec.params)
                    else:
                        self._asked.pop(id(spec.params), None)

            await asyncio.gather(*(work() for _ in range(4)))

    async def _ask(self, shared: AsyncLLM, spec: RequestSpec) -> None:
        try:
            found: Completion | PymtpError = await shared.generate(spec.prompt, spec.params, priority=spec.priority)
        except PymtpError as error:
            found = error.completions[0]
        self._tell(spec, found)

    async def _pieces(self, shared: AsyncLLM, spec: RequestSpec) -> None:
        try:
            async for _ in shared.stream(spec.prompt, spec.params, priority=spec.priority):
                pass
        except PymtpError as error:
            self._tell(spec, error)
        else:
            self._tell_nothing(1)  # pieces do not give the finish reason


def added_up(llm: LLM, book: Book, callers: Callers) -> str:
    """Return a description of inconsistent counts, while nothing runs; "" for none."""
    callers.add_gone()
    figures = llm.figures()
    asked = len(book.times)
    checks = {
        f"{sum(n != 1 for n in book.times)} requests did not end once": all(n == 1 for n in book.times),
        f"{asked} requests, and callers were told of {sum(callers.told.values())}": sum(callers.told.values()) == asked,
        f"{figures.running} run and {figures.waiting} wait": figures.running == figures.waiting == 0,
        f"{figures} does not count {dict(book.ended)}": (figures.finished, figures.cancelled, figures.failed)
        == (book.ended["stop"] + book.ended["length"], book.ended["cancelled"], book.ended["failed"]),
    }
    return "; ".join(words for words, right in checks.items() if not right)


def differences_from_fresh_llm(
    llm: LLM, settings: dict[str, Any], samples: Sequence[tuple[RequestSpec, Outcome]]
) -> list[str]:
    """Describe differences from a new LLM: in outcomes of requests, and in the sequences of the context."""
    differences = []
    for spec, found in samples:
        with LLM(llm.model, **settings) as fresh:
            whole = outcome(fresh.generate(spec.prompt, spec.params))
        if difference := found.difference(whole):
            differences.append(f"{spec}: {difference}")
    context = llm.context
    prompt = (samples[0][0].prompt if samples else [1, 2, 3]) * 100
    with LLM(llm.model, **settings) as fresh:
        expected = _probe(fresh.context, prompt[:200], 0)
    for seq in range(context.n_seq_max):
        context.clear(seq)
        if _probe(context, prompt[:200], seq) != expected:
            differences.append(f"sequence {seq} reads a prompt otherwise than a fresh one")
        context.clear(seq)
    return differences


def _probe(context: Context, prompt: Sequence[int], seq: int) -> list[bytes]:
    read = context.prefill(prompt, seq)
    drafts = [context.draft(token, seq) for token in (5, 6)]
    return [logits.tobytes() for logits in (read, *drafts, context.verify([5, 6, 7], seq))]


def soak_requests(
    model: Model, requests: int, *, seed: int = 0, phases: int = PHASES, **more: Any
) -> Iterator[Phase | list[str]]:
    """Yield the results after each phase, and at last the differences from a new LLM. more: options of the LLM."""
    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_ubatch": 128, "n_batch": 128} | more
    texts = [model.tokenize(text) for text in held_out_prompts(12, 3000)]
    with LLM(model, **({"n_seq_max": 6} | settings)) as llm:
        book, faults = Book(llm), Faults(llm.context, random.Random(seed))
        callers = Callers(llm, texts, seed)
        for phase in range(phases):
            callers.play(requests * (phase + 1) // phases - requests * phase // phases, loop=phase % 2 == 0)
            llm._engine.process_queues()  # streams that were dropped last
            play_shapes(llm.context, faults)
            gc.collect()
            figures = llm.figures()
            yield Phase(
                requests=len(book.times),
                told=dict(callers.told),
                ended=dict(book.ended),
                faults=dict(faults.made),
                rounds=figures.rounds,
                sequences=sum(n * times for n, times in figures.sequences.items()) / max(1, figures.rounds),
                alive=sum(isinstance(one, Request) for one in gc.get_objects()),
                resident=resident(),
                wrong=added_up(llm, book, callers),
            )
        faults.on = False
        settings.pop("n_seq_max", None)
        yield differences_from_fresh_llm(llm, settings, callers.samples)


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    requests: Annotated[int, typer.Option("--requests", "-r", min=PHASES)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the requests; their times are not reproducible.")] = 0,
    n_seq_max: Annotated[int, typer.Option(min=2)] = 6,
    growth: Annotated[int, typer.Option(help="The most bytes that memory may grow from half to half.")] = 4_000_000,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Run random requests; exit with status 1 if anything is wrong."""
    console = Console(highlight=False)
    phases: list[Phase] = []
    differences: list[str] = []
    with closing(Model(model)) as loaded:
        for found in soak_requests(loaded, requests, seed=seed, n_seq_max=n_seq_max):
            if isinstance(found, list):
                differences = found
                continue
            phases.append(found)
            console.print(
                f"{found.requests:>6} requests ended: {in_words(found.ended)}; "
                f"callers were told: {in_words(found.told)}; faults: {in_words(found.faults)}; "
                f"{found.rounds} rounds of {found.sequences:.1f} sequences; "
                f"{found.alive} stay behind; {(found.resident - phases[0].resident) / 1e6:+.2f} MB {found.wrong}",
                soft_wrap=True,
            )
    half = len(phases) // 2
    grown = median(phase.resident for phase in phases[half:]) - median(phase.resident for phase in phases[:half])
    console.print(
        f"{grown / 1e6:+.2f} MB from the first half to the second; {len(differences)} differ from a fresh LLM"
    )
    for difference in differences:
        console.print(difference, soft_wrap=True)
    if output is not None:
        output.write_text(
            json.dumps({"phases": list(map(asdict, phases)), "differences": differences}, indent=1) + "\n"
        )
    if differences or grown > growth or any(phase.wrong or phase.alive > 1 for phase in phases):
        raise typer.Exit(1)


def in_words(counts: dict[str, int]) -> str:
    """Return the counts as words."""
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


if __name__ == "__main__":
    typer.run(main)
