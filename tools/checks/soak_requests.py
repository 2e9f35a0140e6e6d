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
- Some of the finished requests are repeated on a new LLM without a cache: the same tokens and log-probabilities, bit
  for bit.
- Each sequence prefills, drafts and verifies like a new context: the same bits of logits and of the head's cache.
- Resident memory is flat, while nothing runs and after each shape of round was run: the median of the last third of the
  requests against that of the second third. In the first third, malloc still grows for arrays of many sizes. Leaked
  requests are counted.
"""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any

import typer
from common import SCREEN, ModelFile, Output, Seed, resident, run_command, write_json
from makers.demo_corpus import held_out_prompts
from random_faults import Faults, play_shapes
from random_requests import Outcome, RequestGenerator, RequestSpec, outcome
from together import Outcomes, by_threads

from pymtp import LLM, Model
from pymtp.context.context import Context
from pymtp.engine.request import Request
from pymtp.prefix_cache.records import PrefixFigures
from pymtp.prefix_cache.tree import KvBlock, RadixNode

PHASES = 15  # memory is measured at the end of each, while nothing runs
SAMPLES = 200  # maximum number of outcomes to repeat
STATES = 6  # states of a sequence that the cache has room for
SAVING = ("save_state", "save_cells", "load_state", "load_cells", "copy_cells", "keep_cells", "copy")


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


class Book:
    """Counts how often each request ended, and with which reason, and checks the size of the cache after each."""

    def __init__(self, llm: LLM, cache_bytes: int) -> None:
        self._submit, self._llm, self._cache_bytes = llm._engine.submit, llm, cache_bytes
        self._submit_all = llm._make_requests
        self.most_bytes = self.exceeded = 0
        self.submitted: set[int] = set()
        self._lock = threading.Lock()
        self.times = bytearray()
        self.ended: Counter[str] = Counter()
        llm._engine.submit = self.submit  # type: ignore[method-assign]
        llm._make_requests = self.submit_all  # type: ignore[method-assign]

    def submit_all(self, prompts: Any, params: Any, *arguments: Any, **keywords: Any) -> list[Request]:
        self.submitted |= {id(one) for one in (params if isinstance(params, (list, tuple)) else [params])}
        return self._submit_all(prompts, params, *arguments, **keywords)

    def submit(self, request: Request) -> None:
        with self._lock:
            number = len(self.times)
            self.times.append(0)
        finish = request.finish

        def counted(reason: Any) -> None:
            finish(reason)
            self.times[number] += 1
            self.ended["failed" if request.error is not None else reason] += 1
            nbytes = self._llm.figures().prefixes.nbytes
            self.most_bytes = max(self.most_bytes, nbytes)
            self.exceeded += nbytes > self._cache_bytes

        request.finish = counted  # type: ignore[method-assign]
        self._submit(request)


@dataclass
class Told:
    """What the callers of all requests were told: counts by the finish reason, and some outcomes."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[RequestSpec, Outcome]] = field(default_factory=list)
    n_complete: int = 0

    def add(self, specs: Sequence[RequestSpec], found: Outcomes, submitted: set[int]) -> None:
        """Add the outcomes of requests. submitted: the id() of the params of all requests that were submitted."""
        choose = random.Random(self.seed + self.n_complete)
        for spec in specs:
            if (spec.number, 0) not in found and id(spec.params) in submitted:
                self.counts["nothing"] += spec.params.n
        for (number, i), one in found.items():
            self.counts["nothing" if one.reason == "pieces" else one.reason] += 1
            if one.reason in ("stop", "length"):
                # reservoir sampling: each outcome is equally likely to be among the samples
                self.n_complete += 1
                sample = replace(specs[number], params=specs[number].completions_params[i]), one
                if len(self.samples) < SAMPLES:
                    self.samples.append(sample)
                elif (place := choose.randrange(self.n_complete)) < SAMPLES:
                    self.samples[place] = sample


def added_up(llm: LLM, book: Book, told: Counter[str]) -> str:
    """Return a description of inconsistent counts, while nothing runs; "" for none."""
    figures = llm.figures()
    asked = len(book.times)
    checks = {
        f"{sum(n != 1 for n in book.times)} requests did not end once": all(n == 1 for n in book.times),
        f"{asked} requests, and callers were told of {told.total()}": told.total() == asked,
        f"{figures.running} run and {figures.waiting} wait": figures.running == figures.waiting == 0,
        f"{figures} does not count {dict(book.ended)}": (figures.finished, figures.cancelled, figures.failed)
        == (book.ended["stop"] + book.ended["length"], book.ended["cancelled"], book.ended["failed"]),
    }
    return "; ".join(words for words, right in checks.items() if not right)


def left_behind(llm: LLM) -> str:
    """Describe leaked pins and inconsistent counts of the cache, while nothing runs; "" for none."""
    cache = llm._engine.prefix_cache
    store, tree = cache.store, cache.store.tree
    nodes: list[RadixNode] = []
    left = list(tree.root.children.values())
    while left:
        nodes.append(left.pop())
        left += nodes[-1].children.values()
    blocks: set[KvBlock] = {part.block for node in nodes for part in node.slices or ()}
    states = sum(node.checkpoint.state.nbytes for node in nodes if node.checkpoint is not None)
    nbytes = states + sum(block.data.nbytes for block in blocks)
    context = llm.context
    in_use = sum(contents.in_use for contents in store.sequences)
    checks = {
        f"{len(cache._prefills)} prompts are in prefill": not cache._prefills,
        f"{len(store.pins)} nodes are pinned": not store.pins,
        f"{in_use} sequences are in use": not in_use,
        f"{nbytes} bytes are kept, and {tree.nbytes} counted": nbytes == tree.nbytes,
        f"{len(nodes)} nodes, and {tree.n_nodes} counted": len(nodes) == tree.n_nodes,
        "a sequence does not hold its known tokens": all(
            context.tokens(seq)[: contents.n_tokens] == contents.known_tokens.tolist()
            for seq, contents in enumerate(store.sequences)
        ),
        "a sequence has another state than recorded": all(
            not contents.has_state or context.tokens_held(seq) == contents.n_tokens
            for seq, contents in enumerate(store.sequences)
        ),
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
    with LLM(llm.model, n_seq_max=context.n_seq_max, **settings) as fresh:
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
    return [*logits, context.head_state(seq)]


def shortened(spec: RequestSpec) -> RequestSpec:
    """Return the request with a quarter of its tokens."""
    most = spec.params.max_tokens
    return replace(spec, params=replace(spec.params, max_tokens=most if most is None else 1 + most // 4))


def soak_requests(
    model: Model, requests: int, *, seed: int = 0, phases: int = PHASES, states: float = STATES, **more: Any
) -> Iterator[Phase | list[str]]:
    """Yield the results after each phase, and at last the differences from a new LLM. more: options of the LLM."""
    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_ubatch": 128, "n_batch": 128} | more
    n_seq_max = settings.pop("n_seq_max", 6)
    texts = [model.tokenize(text) for text in held_out_prompts(12, 3000)]
    with LLM(model, n_seq_max=1, **settings) as llm:
        cache_bytes = int(states * llm.context.state_bytes)
    with LLM(model, cache_bytes=cache_bytes, n_seq_max=n_seq_max, **settings) as llm:
        book, faults = Book(llm, cache_bytes), Faults(llm.context, random.Random(seed), also=SAVING)
        told, numbers = Told(seed), random.Random(seed)
        generator = RequestGenerator(model, numbers, texts, llm.context.n_ctx, llm.context.n_ubatch)
        for phase in range(phases):
            n = requests * (phase + 1) // phases - requests * phase // phases
            specs = [shortened(spec) for spec in generator.make_many(n, n // 2)]
            found = by_threads(llm, specs, numbers, loop=phase % 2 == 0)
            told.add(specs, found, book.submitted)
            book.submitted.clear()  # an id may come again
            for (number, _), one in found.items():
                generator.answered(specs[number], one)
            llm._engine.process_queues()  # streams that were dropped last
            wrong = "; ".join(filter(None, (added_up(llm, book, told.counts), left_behind(llm))))
            del specs, found
            play_shapes(llm.context, faults)
            llm._engine.prefix_cache.recover()  # the sequences hold other tokens now
            gc.collect()
            figures = llm.figures()
            yield Phase(
                requests=len(book.times),
                told=dict(told.counts),
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
        yield differences_from_fresh_llm(llm, settings | {"cache_prompt": False}, told.samples)


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
            kept = found.prefixes
            SCREEN.print(
                f"{found.requests:>6} requests ended: {in_words(found.ended)}; "
                f"callers were told: {in_words(found.told)}; faults: {in_words(found.faults)}; "
                f"{found.rounds} rounds of {found.sequences:.1f} sequences; "
                f"{kept.hits} of {kept.lookups} prompts found {kept.found} tokens; {kept.evicted} checkpoints went; "
                f"{found.most_bytes} bytes at most, {found.exceeded} times too many; "
                f"{found.alive} stay behind; {(found.resident - phases[0].resident) / 1e6:+.2f} MB {found.wrong}"
            )
    third = len(phases) // 3
    grown = median(one.resident for one in phases[-third:]) - median(one.resident for one in phases[third:-third])
    SCREEN.print(f"{grown / 1e6:+.2f} MB from the second third to the last; {len(differences)} differ from a fresh LLM")
    for difference in differences:
        SCREEN.print(difference)
    write_json(output, "soak of requests", phases=phases, differences=differences)
    if differences or grown > growth or any(one.wrong or one.exceeded or one.alive > 1 for one in phases):
        raise typer.Exit(1)


def in_words(counts: dict[str, int]) -> str:
    """Return the counts as words."""
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


if __name__ == "__main__":
    run_command(main)
